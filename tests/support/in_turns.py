"""Combinations of parameters of which the fast tests have a share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def in_turns(*values: Iterable[Any], one_of: int = 2) -> list[Any]:
    """Return every combination; one of so many is fast, all others are slow tests.

    Those are spread evenly: of any two parameters, one with at least ``one_of`` values has each
    value of the other in a fast test.
    """
    return [
        pytest.param(
            *(value for _, value in chosen),
            marks=pytest.mark.slow if sum(index for index, _ in chosen) % one_of else (),
        )
        for chosen in product(*map(enumerate, values))
    ]
