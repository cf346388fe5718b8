"""Trains a model in stages with torch.distributed.pipelining, without drlpp.

``stages.py`` has the stages, ``schedule.csv`` what every rank does in a step, ``weights.pt`` the
weights that a training begins with, ``facts.json`` the rest.
"""
