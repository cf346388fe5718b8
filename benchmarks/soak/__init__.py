"""Hours of training and redeployment, and whatever grows."""
