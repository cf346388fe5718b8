"""Faults at random moments of trainings and measurements, and what comes of them."""
