"""The exact planner: a dynamic program over sets of operators that are closed downwards."""
