"""Trainings in tests: data, placement files, kills, and the plain loop to compare with."""
