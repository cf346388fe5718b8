"""Whole candidates: what may vary with the placement, what one takes, the search for the best."""

from drlpp.planners.candidates.judge import Judge
from drlpp.planners.candidates.search import Limits, search
from drlpp.planners.candidates.space import Space, Vary, read_vary

__all__ = ["Space", "Vary", "read_vary", "Judge", "search", "Limits"]
