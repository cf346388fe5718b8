"""What the main job asks of an agent that searches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Outcome


@runtime_checkable
class Searcher(Protocol):
    """Proposes candidates and is told what was measured, as in Nevergrad and Optuna.

    All that an earlier run of the same folder measured is told to a new searcher first, so it needs
    no file of its own.
    """

    def propose(self) -> Sequence[Candidate]:
        """Return candidates to measure next, in turns with each other; none to end the search."""

    def tell(self, candidate: Candidate, outcome: Outcome) -> None:
        """Learn what came of a candidate; one that could not be run has failed."""
