"""The oracle: the same schedule in one process, with every version of the weights kept."""
