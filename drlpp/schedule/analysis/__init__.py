"""What follows from a schedule: versions of weights, staleness, learning rates, windows."""
