"""Problems for planners and agents, and every answer there is, to hold theirs against."""
