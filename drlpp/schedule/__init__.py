"""Schedules as data: what every worker does in which order, with which version of the weights.

Placements, costs, timelines, simulator and runtime import it; it knows none of them.
"""
