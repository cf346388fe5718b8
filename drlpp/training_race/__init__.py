"""Training candidates in turns until one has a good model first; for the command line."""
