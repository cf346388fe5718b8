"""How sure a search is of the best that it has measured."""

from __future__ import annotations

from pydantic import Field

from drlpp.io.documents import Record
from drlpp.schedule.method import Method


class Confidence(Record):
    """How sure a search is of the fastest candidate that it measured.

    Attributes:
        configuration, method: of that candidate.
        share: how probable it is that it is within 1% of the fastest, by the share of draws of what
            is uncertain in which it is.
        expected_gain: the part of its seconds that the best of each draw is expected to save.
    """

    configuration: str
    method: Method
    share: float = Field(ge=0, le=1)
    expected_gain: float = Field(le=1)

    def __str__(self) -> str:
        return (
            f"{self.configuration} with {self.method}: {self.share:.0%} probability of being "
            f"within 1% of the fastest; another is expected to save {self.expected_gain:.1%}"
        )
