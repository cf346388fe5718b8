"""The pre-trained policy on models and clusters that it never saw."""
