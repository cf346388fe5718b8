"""Measuring placements side by side, with plain PyTorch and every other rival.

The command line imports it; it stands on the runtime and the planners.
"""
