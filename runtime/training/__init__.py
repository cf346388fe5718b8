"""Training with a placement: epochs, data, checkpoints, reports."""
