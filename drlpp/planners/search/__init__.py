"""Searches by moves: evolution, annealing and random draws; each asks the objective only."""
