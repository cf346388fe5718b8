"""The controller's side: workers as one group, deployments, runs and measurements."""
