"""Agents and searches compared, at equal numbers of measurements."""
