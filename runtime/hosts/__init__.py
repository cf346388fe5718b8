"""The hosts that keep workers: this machine, and those of a Ray cluster."""
