"""The choices of walks in the making and of finished ones, as the networks see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.prospects import TARGETS, partition_features
from drlpp.agents.transfer.relative_costs import ideals_by_replicas, replicas_needed
from drlpp.agents.transfer.walk_record import RecordedWalk, RecordingWalk, WalkRecord
from drlpp.costs.stage_cost import Array


class Encoded(NamedTuple):
    """Contexts as the networks see them.

    Attributes:
        batch: the contexts.
        nodes: representations of all operators, ``(all operators, units)``.
        contexts: representations of the contexts, ``(C, hidden)``.
        estimates: of their optima, in ideals, ``(C,)``.
    """

    batch: ContextBatch
    nodes: Tensor
    contexts: Tensor
    estimates: Array


@dataclass(frozen=True)
class Choices:
    """D choices with C candidates together; the fields of :class:`WalkRecord`, and what led there.

    Attributes:
        context: of every choice, ``(D,)``.
        may_cut: ``(D,)``.
        sums: of the partition in the making, ``(D, 4)``.
        cuts: ``(D,)``.
        finished_work: of earlier partitions, ``(D,)``.
        used: accelerators that these need for each target, ``(D, targets)``.
        counts: candidates of every choice, ``(D,)``.
        candidates: as operators of the batch, ``(C,)``.
        candidate_sums: ``(C, 4)``.
    """

    context: NDArray[numpy.int64]
    may_cut: NDArray[numpy.bool_]
    sums: Array
    cuts: NDArray[numpy.int64]
    finished_work: Array
    used: Array
    counts: NDArray[numpy.int64]
    candidates: NDArray[numpy.int64]
    candidate_sums: Array


def prospects_of(encoded: Encoded, choices: Choices) -> tuple[Array, Array]:
    """Return numbers on the partitions as they are, then on those with each candidate."""
    rows = numpy.repeat(numpy.arange(len(choices.counts)), choices.counts)
    both = numpy.concatenate([numpy.arange(len(choices.counts)), rows])
    context = choices.context[both]
    return partition_features(
        sums=numpy.concatenate([choices.sums, choices.candidate_sums]),
        finished_work=choices.finished_work[both],
        used=choices.used[both],
        cuts=choices.cuts[both],
        accelerators=encoded.batch.accelerators[context],
        speeds=encoded.batch.speeds[context],
        scales=encoded.batch.scales[context],
        estimates=encoded.estimates[context],
    )


@dataclass
class WalkStates:
    """What walks in the making have come by.

    Attributes:
        context: of every walk.
        first: the first operator of its context in the batch.
        finished_work: of its finished partitions.
        used: accelerators that these need for each target.
        nodes: representations of all operators.
        total: of the operators of its partition in the making.
        size: how many these are.
    """

    context: NDArray[numpy.int64]
    first: list[int]
    finished_work: Array
    used: Array
    nodes: NDArray[numpy.float32]
    total: NDArray[numpy.float32]
    size: NDArray[numpy.float32]

    @classmethod
    def empty(cls, encoded: Encoded, contexts: Sequence[int]) -> WalkStates:
        """Make the states of walks that have not begun; ``contexts`` are those of the walks."""
        index = numpy.array(contexts, dtype=numpy.int64)
        return cls(
            context=index,
            first=encoded.batch.first[index].tolist(),
            finished_work=numpy.zeros(len(index)),
            used=numpy.zeros((len(index), len(TARGETS))),
            nodes=encoded.nodes.cpu().numpy(),
            total=numpy.zeros((len(index), encoded.nodes.shape[1]), dtype=numpy.float32),
            size=numpy.zeros(len(index), dtype=numpy.float32),
        )

    def advance(self, walks: Sequence[RecordingWalk]) -> list[int]:
        """Make the forced choices; returns the walks that have another to make."""
        active = []
        for index, walk in enumerate(walks):
            while not walk.finished and walk.forced:
                self.take(walk, index, 0, 0.0)
            if not walk.finished:
                active.append(index)
        return active

    def take(self, walk: RecordingWalk, index: int, choice: int, log_prob: float) -> None:
        """Make a choice of a walk."""
        first = self.first[index]
        for operator in walk.take(choice, log_prob):
            self.total[index] += self.nodes[first + operator]
            self.size[index] += 1

    def cut(self, index: int, work: float, needed: Array) -> None:
        """Finish a partition of a walk."""
        self.finished_work[index] += work
        self.used[index] += needed
        self.total[index] = 0
        self.size[index] = 0

    def choices(self, walks: Sequence[RecordingWalk], active: Sequence[int]) -> Choices:
        """Return the next choice of every active walk."""
        outlooks = [walks[index].outlook() for index in active]
        return Choices(
            context=self.context[active],
            may_cut=numpy.array([not walks[index].begins for index in active]),
            sums=numpy.array([walks[index].sums for index in active]),
            cuts=numpy.array([walks[index].cuts for index in active]),
            finished_work=self.finished_work[active],
            used=self.used[active],
            counts=numpy.array([len(outlook) for outlook in outlooks]),
            candidates=numpy.array(
                [self.first[i] + operator for i in active for operator in walks[i].candidates]
            ),
            candidate_sums=numpy.array([sums for outlook in outlooks for sums in outlook]),
        )

    def summaries(self, active: Sequence[int]) -> Tensor:
        """Return the mean representation of every partition in the making, 0 for an empty one."""
        return torch.from_numpy(self.total[active] / numpy.maximum(self.size[active], 1)[:, None])


def replayed_choices(
    encoded: Encoded, contexts: Sequence[int], records: Sequence[WalkRecord]
) -> Choices:
    """Return the choices of finished walks."""
    batch = encoded.batch
    per_walk = [len(record.choice) for record in records]
    context = numpy.repeat(numpy.array(contexts, dtype=numpy.int64), per_walk)
    stage_counts = [len(record.stage_sums) for record in records]
    stage_context = numpy.repeat(numpy.array(contexts, dtype=numpy.int64), stage_counts)
    stage_sums = numpy.concatenate([record.stage_sums for record in records])
    needed = replicas_needed(
        ideals_by_replicas(stage_sums, batch.scales[stage_context], int(batch.accelerators.max())),
        encoded.estimates[stage_context, None] * TARGETS,
        batch.accelerators[stage_context],
    )
    used, finished = [], []
    start = 0
    for record, stages in zip(records, stage_counts, strict=True):
        end = start + stages
        before = numpy.zeros((stages + 1, len(TARGETS) + 1))
        before[1:, 0] = stage_sums[start:end, 0].cumsum()
        before[1:, 1:] = needed[start:end].cumsum(axis=0)
        finished.append(before[record.cuts, 0])
        used.append(before[record.cuts, 1:])
        start = end
    offsets = batch.first[numpy.array(contexts)]
    return Choices(
        context=context,
        may_cut=numpy.concatenate([record.may_cut for record in records]),
        sums=numpy.concatenate([record.sums for record in records]),
        cuts=numpy.concatenate([record.cuts for record in records]),
        finished_work=numpy.concatenate(finished),
        used=numpy.concatenate(used),
        counts=numpy.concatenate([record.counts for record in records]),
        candidates=numpy.concatenate(
            [record.candidates + at for record, at in zip(records, offsets, strict=True)]
        ),
        candidate_sums=numpy.concatenate([record.candidate_sums for record in records]),
    )


def replayed_summaries(
    encoded: Encoded, contexts: Sequence[int], walks: Sequence[RecordedWalk]
) -> Tensor:
    """Return the mean representation of the partition at every free choice, ``(D, units)``."""
    nodes, offsets = encoded.nodes, encoded.batch.first[numpy.array(contexts)]
    longest = max(len(walk.order) for walk in walks)
    order = numpy.zeros((longest, len(walks)), dtype=numpy.int64)
    for column, (walk, at) in enumerate(zip(walks, offsets, strict=True)):
        order[: len(walk.order), column] = numpy.array(walk.order, dtype=numpy.int64) + at
    flat = torch.from_numpy(order.ravel()).to(nodes.device)
    # index_select everywhere: the backward pass of indexing is far slower.
    walked = nodes.index_select(0, flat).view(longest, len(walks), -1).cumsum(dim=0)
    running = nn.functional.pad(walked, (0, 0, 0, 0, 1, 0)).flatten(end_dim=1)
    records = [walk.record for walk in walks]
    columns = numpy.repeat(numpy.arange(len(walks)), [len(record.choice) for record in records])
    placed = numpy.concatenate([record.placed for record in records])
    first = numpy.concatenate([record.first for record in records])
    now, then = (
        torch.from_numpy(position * len(walks) + columns).to(nodes.device)
        for position in (placed, first)
    )
    count = torch.from_numpy(numpy.maximum(placed - first, 1)).to(nodes)[:, None]
    return (running.index_select(0, now) - running.index_select(0, then)) / count
