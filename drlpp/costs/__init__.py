"""What operators, stages and placements cost in seconds and bytes, measured or computed.

Timelines, runtime, simulator and planners import it.
"""
