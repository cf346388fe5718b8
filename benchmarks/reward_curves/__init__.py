"""What agents log while they learn, as pictures."""
