"""What every worker is given: its stage, its actions, and what else a run needs."""
