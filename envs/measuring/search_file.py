"""What learning took, and how sure its search is of the best: a file that a run leaves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from drlpp.io.documents import Document, Record
from drlpp.io.quantities import Count, Seconds
from drlpp.schedule.method import Method

FILE_NAME = "search.json"


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


class SearchFile(Document):
    """Where the time of learning went.

    Attributes:
        placements: that were measured in it.
        seconds: from its begin to its end, of all its parts if it was resumed.
        cluster_seconds: of them, for which placements ran on the workers.
        deploying_seconds: of the others, those that preparing such runs took.
        confidence: of the search at its end; None if it did not end, or of an agent without one.
    """

    kind: ClassVar[str] = "search"

    placements: Count
    seconds: Seconds = Field(gt=0)
    cluster_seconds: Seconds
    deploying_seconds: Seconds
    confidence: Confidence | None = None

    def after(self, earlier: SearchFile) -> SearchFile:
        """Return both parts together, with what this one ended with."""
        return self.model_copy(
            update={
                name: getattr(self, name) + getattr(earlier, name)
                for name in ("placements", "seconds", "cluster_seconds", "deploying_seconds")
            }
        )

    @property
    def split_text(self) -> str:
        """Where the time went, in a sentence."""
        whole, running, deploying = self.seconds, self.cluster_seconds, self.deploying_seconds
        outside = whole - running
        return (
            f"learning took {whole:.0f} s for {self.placements} placements, "
            f"{running:.0f} s of them on the cluster: measuring {running / whole:.1%}, "
            f"outside of it {outside / whole:.1%} "
            f"(deploying {deploying / whole:.1%}, "
            f"the agent and logging {(outside - deploying) / whole:.1%})"
        )

    @property
    def lines(self) -> Iterator[str]:
        """What a report says of it."""
        if self.confidence is not None:
            yield str(self.confidence)
        yield self.split_text
