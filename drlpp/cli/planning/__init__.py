"""Planning from the command line: what is given, and what is shown."""
