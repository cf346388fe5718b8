"""What tied weights, weight policies and bfloat16 cost, in time and memory."""
