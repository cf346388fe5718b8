"""A stage of the pipeline on its worker: passes, gradients, updates.

Stands on weights, messages and devices; knows no other worker.
"""
