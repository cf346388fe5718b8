"""Combinations of parameters of which the fast tests have a share."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

import pytest


def words(value: object) -> str:
    """Return the name of a parameter that may consist of several: for ``ids``."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def in_turns(*values: Iterable[Any], one_of: int = 2) -> list[Any]:
    """Return every combination, of which one in ``one_of`` is fast and the others are slow tests.

    Every value of every parameter is in a fast one.
    """
    parameters = [list(of_parameter) for of_parameter in values]
    indices = list(product(*(range(len(of_parameter)) for of_parameter in parameters)))
    fast = [chosen for chosen in indices if sum(chosen) % one_of == 0]
    for place, of_parameter in enumerate(parameters):
        assert len({chosen[place] for chosen in fast}) == len(of_parameter), "too few are fast"
    return [
        pytest.param(
            *(of_parameter[index] for of_parameter, index in zip(parameters, chosen, strict=True)),
            marks=() if chosen in fast else pytest.mark.slow,
        )
        for chosen in indices
    ]
