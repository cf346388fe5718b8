"""Weight policies and predictions: which version of the weights a pass uses, and how it is made."""
