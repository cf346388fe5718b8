"""Which of a race's accelerators are there, and which workers they are."""

from __future__ import annotations

from dataclasses import dataclass

from drlpp.placement.candidate import Candidate
from drlpp.placement.renumbering import Renumbering
from drlpp.runtime.session.session import ClusterSession


@dataclass(frozen=True)
class PresentPart:
    """The accelerators of a race that are there.

    Attributes:
        part: their numbers among all of the race, by which its candidates name them.
        workers: the numbers of their workers, in the same order.
    """

    part: Renumbering
    workers: Renumbering

    @classmethod
    def of(cls, session: ClusterSession) -> PresentPart:
        """Return a session's workers that are there, whose numbers are those of accelerators."""
        present = Renumbering(session.present, session.accelerators)
        return cls(present, present)

    @property
    def absent(self) -> tuple[int, ...]:
        """The numbers of the other accelerators."""
        return tuple(sorted(set(range(self.part.of)) - set(self.part.numbers)))

    def anew(self, candidate: Candidate) -> Candidate:
        """Return a candidate that needs nothing else, on those that are there numbered anew."""
        own = self.part.in_part(candidate)
        assert own is not None, f"{candidate.configuration} needs accelerators that are not there"
        return own

    def on_workers(self, candidate: Candidate) -> Candidate:
        """Return a candidate that needs nothing else, by the numbers of its workers."""
        return self.workers.in_cluster(self.anew(candidate))
