"""Predictions of the simulator, compared with measurements."""
