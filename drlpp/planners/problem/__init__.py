"""What planners are given, and what they minimise; every planner imports it."""
