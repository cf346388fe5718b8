"""How far plans are from what a long search in the simulator finds."""
