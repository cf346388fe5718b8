"""Profiles that are more than timed operators: of graphs, of modules, and with what short runs tell."""
