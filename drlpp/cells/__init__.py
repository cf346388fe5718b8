"""One map for studies and pre-training: cells, run by processes or on a Ray cluster.

A cell is one run, as a record or a tuple: all that the run depends on.
"""

from drlpp.cells.runners import Where
from drlpp.cells.runs import all_of, read_results_of, run_cells

__all__ = ["Where", "all_of", "read_results_of", "run_cells"]
