"""How long planning, simulating, sampling and deploying take."""
