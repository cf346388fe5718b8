"""Profiles that are more than timed operators: of graphs, of modules, with what short runs tell."""
