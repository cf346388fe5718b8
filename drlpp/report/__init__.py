"""A page about a run, in one file that a browser shows: what was measured, who won, and why."""
