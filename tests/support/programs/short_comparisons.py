"""Comparisons at the end of a run that learns, where a test is of something else."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

_SEARCHES = ("local-search", "evolution")


@contextmanager
def short_comparisons() -> Iterator[None]:
    """Let one rival of each kind be measured, and planners propose what no search has to find.

    Otherwise half of what a short run computes is measurements of heats, and thousands of
    evaluations of a model that has three operators.
    """
    # Its room exports a function of the same name.
    best_simulated = importlib.import_module("drlpp.planners.best_simulated")
    quick = tuple(name for name in best_simulated.QUICK if name not in _SEARCHES)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(best_simulated, "QUICK", quick)
        patch.setattr("drlpp.comparison.rivals.MOST_CANDIDATES", 1)
        yield
