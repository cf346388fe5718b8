"""A line of arithmetic that is broken on purpose, and who has to notice it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

Comparison = Callable[[], float]
"""Trains on workers and in another way, and returns the largest difference of two weights."""

Broken = Callable[[Any], Any]
"""Returns what stands in an attribute's place."""


@dataclass(frozen=True)
class Mutation:
    """A sentence about a method that is made untrue.

    Attributes:
        name: what is done instead.
        noticed_by: names of the comparisons that have to fail.
        places: what is broken: attributes of an owner, or keys of a dict.
        broken: in what way.
    """

    name: str
    noticed_by: tuple[str, ...]
    places: tuple[tuple[Any, str], ...]
    broken: Broken

    def how(self, patch: pytest.MonkeyPatch) -> None:
        """Break the code until the patch is undone."""
        for owner, name in self.places:
            if isinstance(owner, dict):
                patch.setitem(owner, name, self.broken(owner[name]))
            else:
                patch.setattr(owner, name, self.broken(getattr(owner, name)))


class Mutations(list[Mutation]):
    """Rows of mutations, each of which is a function from what is there to what is put there."""

    def row(
        self, name: str, noticed_by: tuple[str, ...], owner: Any, *attributes: str
    ) -> Callable[[Broken], Broken]:
        """Add a row for the decorated function, which breaks the owner's attributes."""

        def add(broken: Broken) -> Broken:
            places = tuple((owner, attribute) for attribute in attributes)
            self.append(Mutation(name, noticed_by, places, broken))
            return broken

        return add
