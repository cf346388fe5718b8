"""What a user states by name: optimizers, learning rates, data and clusters.

Every room but ``io`` may import it.
"""
