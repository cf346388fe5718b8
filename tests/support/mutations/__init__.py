"""What is broken on purpose to see that it is noticed, and the comparisons that notice it."""
