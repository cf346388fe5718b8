"""A candidate: a placement and the method that runs it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method


@dataclass(frozen=True)
class Candidate:
    """What is measured, raced, remembered, exported and trained.

    Hashable, so it is the key of every memory: the same placement with two methods is two
    candidates. It may be one that cannot be run; of those that can there is an
    :class:`~drlpp.placement.execution_plan.ExecutionPlan`.
    """

    placement: Placement
    method: Method

    @property
    def canonical(self) -> Candidate:
        """The same for all candidates that run alike: operators of every stage sorted."""
        return replace(self, placement=self.placement.canonical)

    @property
    def configuration(self) -> str:
        """Replicas per stage as PipeDream writes them, like ``2-1-1``."""
        return self.placement.configuration
