"""The small zoo of the tests, its captures, and what torchvision says of the same models."""
