"""Stages that need not be contiguous, as a mixed-integer program."""
