"""Capture: a PyTorch module becomes a graph of operators that can be cut into stages.

Everything from schedules up may import it.
"""
