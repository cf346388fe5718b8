"""Everything that one GPU can tell of the runtime, in one command; see README.md."""
