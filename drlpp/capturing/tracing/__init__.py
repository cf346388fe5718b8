"""From a module to an aten graph: torch.export, and what it leaves to be done."""
