"""Minibatches from a user's data loaders; session and training import it."""
