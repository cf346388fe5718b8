"""Models that a user brings, and where they come from; ``zoo`` has those of the papers.

Capturing and everything above it may import it.
"""
