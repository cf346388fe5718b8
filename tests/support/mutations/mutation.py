"""A line of arithmetic that is broken on purpose, and who has to notice it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Comparison = Callable[[], float]
"""Trains on workers and in another way, and returns the largest difference of two weights."""

Break = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Mutation:
    """A sentence about a method that is made untrue.

    Attributes:
        name: what is done instead.
        how: breaks the code until the patch is undone.
        noticed_by: names of the comparisons that have to fail.
    """

    name: str
    how: Break
    noticed_by: tuple[str, ...]


def instead(owner: Any, name: str, broken: Callable[[Any], Any]) -> Break:
    """Put ``broken`` of what an attribute is in its place."""
    return lambda patch: patch.setattr(owner, name, broken(getattr(owner, name)))
