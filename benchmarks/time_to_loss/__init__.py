"""How soon is a model as good as plain PyTorch's? Races on four tasks and emulated accelerators."""
