"""The controller's side: workers as one group, runs, measurements, and what workers hold."""
