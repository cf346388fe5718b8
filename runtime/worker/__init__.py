"""A worker's process: it executes the actions of a schedule, and times operators.

Its imports are held small by a test.
"""
