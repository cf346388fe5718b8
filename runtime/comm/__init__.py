"""Messages between workers: groups, links, and agreement on what is sent."""
