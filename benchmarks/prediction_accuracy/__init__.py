"""Predictions of the simulator beside measurements."""
