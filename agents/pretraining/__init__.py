"""Pre-training of the policy for many models and clusters on the rule."""
