"""Whole candidates: what may vary with the placement, what one takes, the search for the best."""

from drlpp.planners.search.climbing import Limits, search
from drlpp.planners.search.judge import Judge
from drlpp.planners.search.space import MOST_PER_LINK, Space, Vary, read_vary, usually_varied

__all__ = [
    "MOST_PER_LINK",
    "Space",
    "Vary",
    "read_vary",
    "usually_varied",
    "Judge",
    "search",
    "Limits",
]
