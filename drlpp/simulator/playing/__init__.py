"""A schedule as steps of small integers that repeat, what they cost, and how they are played."""
