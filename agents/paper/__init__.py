"""drl-pp's agent as in the paper: encoder, partitioner, scheduler, PPO."""
