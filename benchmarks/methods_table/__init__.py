"""Every method's weights against the reference executor's, and their memory."""
