"""Cuts between modules, and the layouts of programs that make no others."""
