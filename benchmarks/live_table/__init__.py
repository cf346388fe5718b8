"""An agent's placements against what a user has without it, live."""
