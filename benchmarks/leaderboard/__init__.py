"""Agents on a fixed set of simulated problems (README.md)."""
