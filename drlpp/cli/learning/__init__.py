"""`drlpp learn` and `drlpp race`: programs that run for long, and end with a table."""
