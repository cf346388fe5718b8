"""Where the inputs and targets of a minibatch come from."""
