"""The hosts of a Ray cluster: which nodes are taken, and an actor on each."""
