"""DRL-PP learns the fastest way to train a PyTorch model in a pipeline over several accelerators."""
