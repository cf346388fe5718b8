"""What is trained on and evaluated on."""
