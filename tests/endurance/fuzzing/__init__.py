"""Damaged files and extreme numbers for everything that reads files."""
