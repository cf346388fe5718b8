"""PipeDream's partitioning."""
