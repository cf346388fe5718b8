"""Hypothesis strategies: random graphs, planning problems, schedules and simulations."""
