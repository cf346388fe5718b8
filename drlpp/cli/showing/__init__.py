"""How files look on a terminal: tables of graphs, profiles, clusters, comparisons, races."""
