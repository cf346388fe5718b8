"""DRL-PP: the fastest way to train a PyTorch model in a pipeline, learned by running it."""
