"""Placements exported for torch, executed there (README.md)."""
