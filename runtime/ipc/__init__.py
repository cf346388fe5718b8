"""What processes say to each other, and how: messages, files of tensors, handshakes.

Imports the devices only; every floor above it may import it.
"""
