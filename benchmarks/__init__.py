"""Questions that have a command and an answer; each script says its own."""
