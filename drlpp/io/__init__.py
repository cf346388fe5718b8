"""Files and what they may do: documents, run folders, locks, names to import.

Knows nothing of models; everything else in the package may import it.
"""
