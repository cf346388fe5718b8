"""Hypothesis strategies: random graphs, planning problems and schedules."""
