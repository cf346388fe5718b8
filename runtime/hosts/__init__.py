"""The hosts that keep workers: this machine and others, and how they find each other."""
