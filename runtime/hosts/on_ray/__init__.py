"""The hosts of a Ray cluster: joining it, which nodes are taken, and an actor on each."""
