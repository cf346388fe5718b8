"""A placement in the formats of other projects: who trains with it need not have drlpp.

A file for each format. Each says in words what it cannot express, and writes the nearest that it
can. ``bundle/`` is what an export for torch takes along; it imports nothing of drlpp.
"""
