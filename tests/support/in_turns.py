"""Combinations of parameters of which the fast tests have a share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def in_turns(*values: Iterable[Any], one_of: int = 2) -> list[Any]:
    """Return every combination, of which one in ``one_of`` is fast and the others are slow tests.

    The fast ones are spread evenly: every value of a parameter is in one of them, if another
    parameter has at least ``one_of`` values.
    """
    return [
        pytest.param(
            *(value for _, value in chosen),
            marks=pytest.mark.slow if sum(index for index, _ in chosen) % one_of else (),
        )
        for chosen in product(*map(enumerate, values))
    ]
