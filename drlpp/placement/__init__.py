"""Placements, the files that hold them, and what measuring one gives.

Costs, planners, runtime, environments and agents import it.
"""
