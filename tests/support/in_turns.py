"""Combinations of parameters of which the fast tests have a share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import product
from typing import Any

import pytest


def words(value: object) -> str:
    """Return the name of a parameter that may consist of several: for ``ids``."""
    return "-".join(map(str, value)) if isinstance(value, tuple) else str(value)


def fast_are(fast: Iterable[Any], values: Iterable[Any]) -> list[Any]:
    """Return all values, of which only some are fast and the others are slow tests."""
    chosen = list(fast)
    return [
        value if value in chosen else pytest.param(value, marks=pytest.mark.slow)
        for value in values
    ]


def in_turns(*values: Iterable[Any], one_of: int = 2, slow: Collection[Any] = ()) -> list[Any]:
    """Return every combination, of which one in ``one_of`` is fast and the others are slow tests.

    Every value of every parameter is in a fast one, unless it is in ``slow``, of which none is;
    more are fast where that needs more.
    """
    parameters = [list(of_parameter) for of_parameter in values]
    indices = list(product(*(range(len(of_parameter)) for of_parameter in parameters)))
    may_be_fast = [
        chosen
        for chosen in indices
        if not any(of[index] in slow for of, index in zip(parameters, chosen, strict=True))
    ]
    fast = [chosen for chosen in may_be_fast if sum(chosen) % one_of == 0]
    missing = {value for chosen in may_be_fast for value in enumerate(chosen)}
    missing -= {value for chosen in fast for value in enumerate(chosen)}
    while missing:
        fast.append(max(may_be_fast, key=lambda chosen: len(missing & set(enumerate(chosen)))))
        missing -= set(enumerate(fast[-1]))
    return [
        pytest.param(
            *(of_parameter[index] for of_parameter, index in zip(parameters, chosen, strict=True)),
            marks=() if chosen in fast else pytest.mark.slow,
        )
        for chosen in indices
    ]
