"""PipeDream's partitioning, with its formulas as printed and as in its code."""
