"""The walk of drl-pp's Algorithm 1 through a graph, without the networks that steer it.

Partition by partition the walk adds operators: a candidate is chosen (an operator next to what has
been placed) and drags in everything it depends on, until the partition is cut::

    1: V_c = inputs of the graph    ┌── choose a start among V_c ◀────────┐
                                    ▼                                     │ cut k < K − 1
       add it, its missing predecessors; V_c += successors ──▶ choose ────┤
                                    ▲                            │        │ cut k = K − 1
                                    └────── a candidate ─────────┘        ▼
                                                       the rest is the last partition
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

CUT = -1
"""The choice that ends a partition; other choices are positions in the list of candidates."""

Reads = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Decision:
    """One choice of the walk, with what it was made from.

    Attributes:
        placed: how many operators had been walked to before.
        partition: the partition whose state the choice is made from, counted from 0. A start
            after a cut is chosen from the policy of the cut (Algorithm 1, line 21), so it names
            the partition that was cut.
        candidates: the operators to choose from, sorted.
        may_cut: whether the partition could have been cut instead.
        choice: a position in ``candidates``, or :data:`CUT`.
    """

    placed: int
    partition: int
    candidates: tuple[int, ...]
    may_cut: bool
    choice: int

    @property
    def forced(self) -> bool:
        """Whether there was nothing to choose."""
        return len(self.candidates) + self.may_cut == 1


@dataclass(frozen=True, slots=True)
class PartitionWalk:
    """A finished walk: enough to replay every choice of it.

    Attributes:
        order: operators in the order they were walked to; those of the last partition are missing
            if it is only "the left of nodes" (line 24).
        starts: for every partition that was walked through, its first position in ``order``.
        stage_of_operator: the partition of every operator, counted from 0.
        decisions: every choice, forced ones included.
        log_probs: the logarithm of the probability with which each was made.
    """

    order: tuple[int, ...]
    starts: tuple[int, ...]
    stage_of_operator: tuple[int, ...]
    decisions: tuple[Decision, ...]
    log_probs: tuple[float, ...]

    @property
    def stages(self) -> int:
        """The number of partitions."""
        return max(self.stage_of_operator) + 1

    @property
    def free_log_probs(self) -> list[float]:
        """The logarithms of the probabilities of the choices that were not forced."""
        pairs = zip(self.log_probs, self.decisions, strict=True)
        return [log_prob for log_prob, decision in pairs if not decision.forced]


class Walk:
    """A walk in the making.

    A partition is closed under predecessors once earlier partitions are removed (line 5), so the
    partitions always form a chain of downsets, and there are candidates as long as any operator
    is left. Line 8's forced cut is therefore the end of the walk.

    Args:
        predecessors: for every operator those that it depends on, in a topological order.
        successors: for every operator those that depend on it.
        partitions: K, the largest number of partitions.

    Attributes:
        order: the operators that have been walked to.
        cuts: how many cuts have been made.
    """

    def __init__(self, predecessors: Reads, successors: Reads, partitions: int) -> None:
        self._predecessors = predecessors
        self._successors = successors
        self._partitions = partitions
        self.order: list[int] = []
        self._starts: list[int] = []
        self._decisions: list[Decision] = []
        self._log_probs: list[float] = []
        self._stage_of = [-1] * len(predecessors)
        self._candidates = {op for op, read in enumerate(predecessors) if not read}
        self._sorted: tuple[int, ...] | None = None
        self.cuts = 0

    @property
    def finished(self) -> bool:
        """Whether every operator has a partition, or the last cut has been made."""
        return not self._candidates or self.cuts >= self._partitions - 1

    @property
    def begins(self) -> bool:
        """Whether the next choice is the start of a partition."""
        return len(self._starts) == self.cuts

    @property
    def candidates(self) -> tuple[int, ...]:
        """V_c: the operators that may be chosen next, sorted."""
        if self._sorted is None:
            self._sorted = tuple(sorted(self._candidates))
        return self._sorted

    def take(self, choice: int, log_prob: float) -> tuple[int, ...]:
        """Make a choice; returns the operators that it adds, predecessors first."""
        candidates = self.candidates
        self._decisions.append(
            Decision(
                placed=len(self.order),
                partition=max(len(self._starts) - 1, 0),
                candidates=candidates,
                may_cut=not self.begins,
                choice=choice,
            )
        )
        self._log_probs.append(log_prob)
        if choice == CUT:
            self.cuts += 1
            return ()
        if self.begins:
            self._starts.append(len(self.order))
        added = self._missing_predecessors(candidates[choice])
        for operator in added:
            self._stage_of[operator] = len(self._starts) - 1
            self._candidates.update(self._successors[operator])
        self.order += added
        # What is added may have been a candidate, or become one through what it depends on.
        self._candidates.difference_update(added)
        self._sorted = None
        return added

    def result(self) -> PartitionWalk:
        """Return the finished walk; operators without a partition become the last one (line 24)."""
        stage_of = [len(self._starts) if stage < 0 else stage for stage in self._stage_of]
        return PartitionWalk(
            order=tuple(self.order),
            starts=tuple(self._starts),
            stage_of_operator=tuple(stage_of),
            decisions=tuple(self._decisions),
            log_probs=tuple(self._log_probs),
        )

    def _missing_predecessors(self, operator: int) -> tuple[int, ...]:
        """Return ``operator`` and what it needs that has no partition, in topological order."""
        missing, frontier = {operator}, [operator]
        while frontier:
            for read in self._predecessors[frontier.pop()]:
                if self._stage_of[read] < 0 and read not in missing:
                    missing.add(read)
                    frontier.append(read)
        return tuple(sorted(missing))
