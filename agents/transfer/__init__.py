"""The policy that fits every model and cluster, with its features and weights."""
