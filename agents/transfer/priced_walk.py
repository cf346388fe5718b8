"""A walk that keeps account of what its partitions cost, for policies that are shown costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from drlpp.agents.paper.walk import CUT, PartitionWalk, Walk
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.relative_costs import RelativeCosts

Sums = tuple[float, float, float, float]
"""What is added up for a stage: work, weights, incoming and outgoing, in ideals."""

_NOTHING: Sums = (0.0, 0.0, 0.0, 0.0)


class Standing(NamedTuple):
    """Where a walk stands before a choice that is not forced.

    Attributes:
        placed: how many operators have been walked to.
        first: how many of them are in finished partitions.
        cuts: how many partitions are finished.
        may_cut: whether the partition can be cut.
        candidates: the operators to choose from.
        sums: of the partition so far.
        outlook: of the partition with each of the candidates.
    """

    placed: int
    first: int
    cuts: int
    may_cut: bool
    candidates: tuple[int, ...]
    sums: Sums
    outlook: tuple[Sums, ...]


@dataclass(frozen=True, slots=True)
class PricedWalk(PartitionWalk):
    """A finished walk and what its partitions cost.

    Attributes:
        standings: before every choice that was not forced.
        stage_sums: of every partition.
    """

    standings: tuple[Standing, ...] = field(compare=False, repr=False)
    stage_sums: tuple[Sums, ...] = field(compare=False, repr=False)

    @property
    def chosen(self) -> list[int]:
        """What was chosen at every standing: a position among the candidates, or ``CUT``."""
        return [decision.choice for decision in self.decisions if not decision.forced]


class StageCostAccumulator:
    """Adds up what the partition in the making costs, operator by operator.

    A tensor enters a stage once, however many of its operators read it, and leaves it as long as
    one of its readers is in no stage yet. Its gradient goes the other way.
    """

    def __init__(self, costs: RelativeCosts) -> None:
        self._work = costs.work.tolist()
        self._weights = costs.weights.tolist()
        self._tensors = [(t.source, t.forward, t.backward) for t in costs.tensors]
        self._unread = [len(t.readers) + t.kept for t in costs.tensors]
        self._kept = [index for index, tensor in enumerate(costs.tensors) if tensor.kept]
        self._made_by, self._read_by = costs.made_by, costs.read_by
        self._stage_of = [-1] * len(self._work)
        self._entered = [-1] * len(costs.tensors)
        self._stage = 0
        self.sums: Sums = _NOTHING

    def add(self, operators: Iterable[int]) -> None:
        """Add operators, predecessors first, to the partition."""
        self.sums = self.with_operators(operators, keep=True)

    def cut(self) -> Sums:
        """End the partition; returns its sums."""
        finished, self.sums = self.sums, _NOTHING
        self._stage += 1
        return finished

    def finish(self) -> Sums:
        """End the last partition, in which the loss reads what the model returns."""
        work, weights, incoming, outgoing = self.sums
        for tensor in self._kept:
            source, forward, backward = self._tensors[tensor]
            self._unread[tensor] -= 1
            if self._stage_of[source] != self._stage:
                if self._entered[tensor] != self._stage:
                    incoming += forward
                    outgoing += backward
            elif not self._unread[tensor]:
                outgoing -= forward
                incoming -= backward
        return work, weights, incoming, outgoing

    def with_operators(self, operators: Iterable[int], keep: bool = False) -> Sums:
        """Return the sums after adding operators, predecessors first.

        It remembers them only if ``keep`` is true.
        """
        work, weights, incoming, outgoing = self.sums
        stage = self._stage
        stage_of, entered, unread = self._stage_of, self._entered, self._unread
        undo: list[tuple[list[int], int, int]] = []
        for operator in operators:
            work += self._work[operator]
            weights += self._weights[operator]
            for tensor in self._read_by[operator]:
                source, forward, backward = self._tensors[tensor]
                if not keep:
                    undo.append((unread, tensor, unread[tensor]))
                unread[tensor] -= 1
                if stage_of[source] == stage:
                    if not unread[tensor]:
                        outgoing -= forward
                        incoming -= backward
                elif entered[tensor] != stage:
                    if not keep:
                        undo.append((entered, tensor, entered[tensor]))
                    entered[tensor] = stage
                    incoming += forward
                    outgoing += backward
            for tensor in self._made_by[operator]:
                if unread[tensor]:
                    _, forward, backward = self._tensors[tensor]
                    outgoing += forward
                    incoming += backward
            if not keep:
                undo.append((stage_of, operator, stage_of[operator]))
            stage_of[operator] = stage
        for values, index, before in reversed(undo):
            values[index] = before
        return work, weights, incoming, outgoing


class PricingWalk(Walk):
    """A walk in the making, into as many partitions as there are accelerators, with its costs.

    Attributes:
        stage_sums: of the finished partitions.
    """

    def __init__(self, context: PlacementContext) -> None:
        super().__init__(context.predecessors, context.successors, context.accelerators)
        self._accumulator = StageCostAccumulator(context.costs)
        self._standings: list[Standing] = []
        self._standing: Standing | None = None
        self.stage_sums: list[Sums] = []

    @property
    def forced(self) -> bool:
        """Whether the next choice has no alternative."""
        return self.begins and len(self.candidates) == 1

    @property
    def standing(self) -> Standing:
        """Where the walk stands."""
        if self._standing is None:
            self._standing = Standing(
                placed=len(self.order),
                first=len(self.order) if self.begins else self._starts[-1],
                cuts=self.cuts,
                may_cut=not self.begins,
                candidates=self.candidates,
                sums=self._accumulator.sums,
                outlook=tuple(
                    self._accumulator.with_operators(self._missing_predecessors(candidate))
                    for candidate in self.candidates
                ),
            )
        return self._standing

    def take(self, choice: int, log_prob: float) -> tuple[int, ...]:
        """Make a choice, and note where the walk stood if there was an alternative."""
        if not self.forced:
            self._standings.append(self.standing)
        self._standing = None
        added = super().take(choice, log_prob)
        if choice == CUT:
            self.stage_sums.append(self._accumulator.cut())
        else:
            self._accumulator.add(added)
        return added

    def result(self) -> PricedWalk:
        """Return the finished walk with its costs."""
        plain = super().result()
        # What is left after the last cut was never walked to.
        self._accumulator.add(op for op, stage in enumerate(self._stage_of) if stage < 0)
        return PricedWalk(
            order=plain.order,
            starts=plain.starts,
            stage_of_operator=plain.stage_of_operator,
            decisions=plain.decisions,
            log_probs=plain.log_probs,
            standings=tuple(self._standings),
            stage_sums=(*self.stage_sums, self._accumulator.finish()),
        )
