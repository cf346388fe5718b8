"""Races of placements with plain PyTorch and every other rival, by milliseconds or to a loss.

The command line imports it; it stands on the runtime and the planners.
"""
