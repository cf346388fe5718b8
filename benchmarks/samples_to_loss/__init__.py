"""How many samples each method needs to plain training's loss, at its own best rate."""
