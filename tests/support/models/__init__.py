"""Models that tests train and cut, named by workers as a user's are, and captures of them."""
