"""The runtime's steady state beside its busiest worker and torch's own means."""
