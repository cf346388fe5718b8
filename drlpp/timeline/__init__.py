"""When every action of a schedule happened, and its pictures.

Runtime, simulator and command line import it.
"""
