"""Timelines from the command line: where they come from, and how they are shown."""
