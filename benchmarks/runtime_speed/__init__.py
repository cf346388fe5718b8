"""The runtime's steady state, compared with its busiest worker and torch's own means."""
