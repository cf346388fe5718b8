"""A walk that keeps account of what its partitions cost, for policies that are shown costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy
from numpy.typing import NDArray

from drlpp.agents.paper.walk import CUT, PartitionWalk, Walk
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.relative_costs import SUMS, RelativeCosts
from drlpp.costs.stage_cost import Array

_Sums = tuple[float, float, float, float]
_NOTHING: _Sums = (0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True)
class WalkRecord:
    """The costs at every free choice of a walk, as arrays; D such choices with C candidates.

    Attributes:
        placed: how many operators had been walked to, ``(D,)``.
        first: how many of them are in earlier partitions, ``(D,)``.
        cuts: how many partitions were finished, ``(D,)``.
        may_cut: whether the partition could have been cut, ``(D,)``.
        choice: the position among the choice's candidates, or :data:`~drlpp.agents.paper.walk.CUT`.
        sums: work, weights, incoming and outgoing of the partition so far, ``(D, 4)``.
        counts: how many candidates there were, ``(D,)``.
        candidates: the candidates of all choices, one choice after the other, ``(C,)``.
        candidate_sums: of the partition if the candidate is added, ``(C, 4)``.
        stage_sums: of every finished partition, ``(stages, 4)``.
    """

    placed: NDArray[numpy.int64]
    first: NDArray[numpy.int64]
    cuts: NDArray[numpy.int64]
    may_cut: NDArray[numpy.bool_]
    choice: NDArray[numpy.int64]
    sums: Array
    counts: NDArray[numpy.int64]
    candidates: NDArray[numpy.int64]
    candidate_sums: Array
    stage_sums: Array


@dataclass(frozen=True, slots=True)
class RecordedWalk(PartitionWalk):
    """A finished walk with its record.

    Attributes:
        context: whose costs the record tells.
        record: the costs at every free choice.
    """

    context: PlacementContext = field(compare=False, repr=False)
    record: WalkRecord = field(compare=False, repr=False)


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
        self.sums: _Sums = _NOTHING

    def add(self, operators: Iterable[int]) -> None:
        """Add operators, predecessors first, to the partition."""
        self.sums = self.with_operators(operators, keep=True)

    def cut(self) -> _Sums:
        """End the partition; returns its sums."""
        finished, self.sums = self.sums, _NOTHING
        self._stage += 1
        return finished

    def finish(self) -> _Sums:
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

    def with_operators(self, operators: Iterable[int], keep: bool = False) -> _Sums:
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


class RecordingWalk(Walk):
    """A walk in the making that writes a :class:`WalkRecord`.

    Args:
        context: a transferable one.
        partitions: K, the largest number of partitions.
    """

    def __init__(self, context: PlacementContext, partitions: int) -> None:
        super().__init__(context, partitions)
        assert context.costs is not None
        self._context = context
        self._accumulator = StageCostAccumulator(context.costs)
        self._rows: list[tuple[int, int, int, bool, int, int]] = []
        self._sums: list[_Sums] = []
        self._chosen_from: list[int] = []
        self._candidate_sums: list[_Sums] = []
        self._stage_sums: list[_Sums] = []
        self._outlook: list[_Sums] | None = None

    @property
    def sums(self) -> _Sums:
        """The sums of the partition in the making."""
        return self._accumulator.sums

    @property
    def forced(self) -> bool:
        """Whether the next choice has no alternative."""
        return self.begins and len(self.candidates) == 1

    @property
    def first(self) -> int:
        """The number of operators in finished partitions."""
        return len(self._order) if self.begins else self._starts[-1]

    def outlook(self) -> list[_Sums]:
        """Return the sums of the partition with each of the candidates, in their order."""
        if self._outlook is None:
            self._outlook = [
                self._accumulator.with_operators(self._missing_predecessors(candidate))
                for candidate in self.candidates
            ]
        return self._outlook

    def take(self, choice: int, log_prob: float) -> tuple[int, ...]:
        """Make a choice, and record it if there was an alternative."""
        if not self.forced:
            candidates = self.candidates
            self._rows.append(
                (
                    len(self._order),
                    self.first,
                    self.cuts,
                    not self.begins,
                    choice,
                    len(candidates),
                )
            )
            self._sums.append(self.sums)
            self._chosen_from += candidates
            self._candidate_sums += self.outlook()
        self._outlook = None
        added = super().take(choice, log_prob)
        if choice == CUT:
            self._stage_sums.append(self._accumulator.cut())
        else:
            self._accumulator.add(added)
        return added

    def result(self) -> RecordedWalk:
        """Return the finished walk with its record."""
        plain = super().result()
        # What is left after the last cut was never walked to.
        self._accumulator.add(op for op, stage in enumerate(self._stage_of) if stage < 0)
        rows = numpy.array(self._rows, dtype=numpy.int64).reshape(-1, 6)
        record = WalkRecord(
            placed=rows[:, 0],
            first=rows[:, 1],
            cuts=rows[:, 2],
            may_cut=rows[:, 3].astype(bool),
            choice=rows[:, 4],
            sums=numpy.array(self._sums).reshape(-1, SUMS),
            counts=rows[:, 5],
            candidates=numpy.array(self._chosen_from, dtype=numpy.int64),
            candidate_sums=numpy.array(self._candidate_sums).reshape(-1, SUMS),
            stage_sums=numpy.array([*self._stage_sums, self._accumulator.finish()]),
        )
        return RecordedWalk(
            order=plain.order,
            starts=plain.starts,
            stage_of_operator=plain.stage_of_operator,
            decisions=plain.decisions,
            log_probs=plain.log_probs,
            context=self._context,
            record=record,
        )


def recorded(context: PlacementContext, walk: PartitionWalk) -> RecordedWalk:
    """Return the same walk with a record under ``context``.

    It is walked again where its record is another's.
    """
    if isinstance(walk, RecordedWalk) and walk.context is context:
        return walk
    again = RecordingWalk(context, context.accelerators)
    for decision, log_prob in zip(walk.decisions, walk.log_probs, strict=True):
        again.take(decision.choice, log_prob)
    return again.result()
