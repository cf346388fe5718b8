"""Accelerators as a worker sees them: devices, their clocks, and emulated speeds.

The lowest floor of the runtime.
"""
