"""What weights that are not the newest cost in accuracy."""
