"""Agents and searches beside each other, at equal numbers of measurements."""
