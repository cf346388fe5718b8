"""The command line and its tables; nothing imports it but programs."""
