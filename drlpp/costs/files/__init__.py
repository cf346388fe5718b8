"""Profiles and tables of costs in files: ours, other projects', and times that others took."""
