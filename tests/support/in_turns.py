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


def in_turns(*values: Iterable[Any], slow: Collection[Any] = ()) -> list[Any]:
    """Return every combination, of which a diagonal is fast and the others are slow tests.

    Every value of every parameter is in a fast one, unless it is in ``slow``, of which none is.
    """
    parameters = [list(of_parameter) for of_parameter in values]
    usual = [[value for value in of_parameter if value not in slow] for of_parameter in parameters]
    turns = range(max(map(len, usual)) if all(usual) else 0)
    fast = [
        tuple(of_parameter[turn % len(of_parameter)] for of_parameter in usual) for turn in turns
    ]
    return [
        pytest.param(*chosen, marks=() if chosen in fast else pytest.mark.slow)
        for chosen in product(*parameters)
    ]
