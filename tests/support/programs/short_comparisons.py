"""Comparisons at the end of a run that learns, where a test is of something else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def short_comparisons() -> Iterator[None]:
    """Let one rival of each kind be measured.

    Otherwise half of what a short run computes is measurements of heats.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drlpp.racing.rivals.MOST_CANDIDATES", 1)
        yield
