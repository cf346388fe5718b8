"""The partitioner that fits every graph and cluster (after drl-pp §3.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drlpp.agents.context_batch import ContextBatch
from drlpp.agents.prospects import PARTITION_NUMBERS, TARGETS, partition_prospects
from drlpp.agents.relative_costs import ideals_by_replicas, replicas_needed
from drlpp.agents.walk import CUT
from drlpp.agents.walk_record import RecordedWalk, RecordingWalk, WalkRecord
from drlpp.workload import Array


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


class TransferPartitioner(nn.Module):
    """Scores cuts and candidates by representations and by what the rule says of them.

    The walk is Algorithm 1's. A partition is a set, so what counts is which operators it has, not
    in which order they came: where the paper has two LSTMs, here are the mean representation of the
    partition, and its running sums with what follows from them
    (:func:`~drlpp.agents.prospects.partition_prospects`), for the partition as it is and with each
    of the candidates. So nothing has to be carried from choice to choice, a whole episode is
    evaluated in one pass, and weights fit every number of operators and accelerators.

    Args:
        units: width of representations.
        hidden: width of the hidden layers.
    """

    def __init__(self, units: int, hidden: int) -> None:
        super().__init__()
        self.operator = nn.Linear(units, hidden, bias=False)
        self.summary = nn.Linear(units, hidden, bias=False)
        self.now = nn.Linear(PARTITION_NUMBERS, hidden)
        self.then = nn.Linear(PARTITION_NUMBERS, hidden)
        self.candidate_score = _score(hidden)
        self.candidates_mean = nn.Linear(hidden, hidden, bias=False)
        self.cut = nn.Linear(hidden, hidden)
        self.cut_score = _score(hidden)

    @torch.no_grad()
    def sample(
        self, encoded: Encoded, contexts: Sequence[int], deterministic: bool = False
    ) -> list[RecordedWalk]:
        """Walk through graphs, all walks in step.

        Args:
            encoded: the contexts.
            contexts: for every walk, the index of its context.
            deterministic: take the likeliest choice every time instead of sampling; a cut if it is
                likelier than all candidates together.
        """
        batch = encoded.batch
        walks = [RecordingWalk(batch.contexts[c], batch.contexts[c].accelerators) for c in contexts]
        states = _States.empty(encoded, contexts)
        projected = self.operator(encoded.nodes)
        while active := states.advance(walks):
            choices = states.choices(walks, active)
            needed, logits = self._logits(
                encoded, projected, choices, states.summaries(active).to(projected.device)
            )
            log_probs = logits.log_softmax(dim=1)
            columns = (
                _likeliest(log_probs)
                if deterministic
                else torch.multinomial(log_probs.exp(), 1).squeeze(1)
            )
            taken = log_probs.gather(1, columns[:, None]).squeeze(1).tolist()
            for row, (index, column) in enumerate(zip(active, columns.tolist(), strict=True)):
                states.take(walks[index], index, column - 1 if column else CUT, taken[row])
                if not column:
                    states.cut(index, choices.sums[row, 0], needed[row])
        return [walk.result() for walk in walks]

    def logits(
        self, encoded: Encoded, contexts: Sequence[int], walks: Sequence[RecordedWalk]
    ) -> tuple[Tensor, Tensor]:
        """Scores at every free choice of finished walks, in one pass.

        Args:
            encoded: the contexts.
            contexts: for every walk, the index of its context.
            walks: with records.

        Returns:
            Scores of the cut (column 0) and of the candidates, −∞ where there is none,
            ``(D, 1 + most candidates)``, and the column that was chosen, ``(D,)``.
        """
        records = [walk.record for walk in walks]
        choices = _replayed(encoded, contexts, records)
        _, logits = self._logits(
            encoded,
            self.operator(encoded.nodes),
            choices,
            _replayed_summaries(encoded, contexts, walks),
        )
        chosen = numpy.concatenate([record.choice for record in records]) + 1
        return logits, torch.from_numpy(chosen).to(logits.device)

    def _logits(
        self, encoded: Encoded, projected: Tensor, choices: Choices, summaries: Tensor
    ) -> tuple[Array, Tensor]:
        """The accelerators that the partitions need, and the scores."""
        numbers, needed = _prospects(encoded, choices)
        decisions = len(choices.counts)
        both = torch.from_numpy(numbers.astype(numpy.float32)).to(projected.device)
        context = torch.from_numpy(choices.context).to(projected.device)
        now = (
            encoded.contexts.index_select(0, context)
            + self.summary(summaries)
            + self.now(both[:decisions])
        )
        rows = torch.from_numpy(numpy.repeat(numpy.arange(decisions), choices.counts))
        rows = rows.to(projected.device)
        operators = torch.from_numpy(choices.candidates).to(projected.device)
        then = now.index_select(0, rows) + projected.index_select(0, operators)
        then = torch.relu(then + self.then(both[decisions:]))
        scores = self.candidate_score(then).squeeze(1)
        counts = torch.from_numpy(choices.counts).to(projected)[:, None]
        mean = now.new_zeros(now.shape).index_add(0, rows, then) / counts
        cuts = self.cut_score(torch.relu(self.cut(torch.relu(now)) + self.candidates_mean(mean)))
        first = numpy.cumsum(choices.counts) - choices.counts
        columns = numpy.arange(len(operators)) - numpy.repeat(first, choices.counts) + 1
        logits = scores.new_full((decisions, 1 + int(choices.counts.max())), -torch.inf)
        logits = logits.index_put((rows, torch.from_numpy(columns)), scores)
        cuttable = torch.from_numpy(numpy.flatnonzero(choices.may_cut))
        column = torch.zeros_like(cuttable)
        return needed[:decisions], logits.index_put((cuttable, column), cuts[cuttable, 0])


def _prospects(encoded: Encoded, choices: Choices) -> tuple[Array, Array]:
    """Of the partitions as they are, then of those with each candidate."""
    rows = numpy.repeat(numpy.arange(len(choices.counts)), choices.counts)
    both = numpy.concatenate([numpy.arange(len(choices.counts)), rows])
    context = choices.context[both]
    return partition_prospects(
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
class _States:
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
    def empty(cls, encoded: Encoded, contexts: Sequence[int]) -> _States:
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
        """A walk has finished a partition."""
        self.finished_work[index] += work
        self.used[index] += needed
        self.total[index] = 0
        self.size[index] = 0

    def choices(self, walks: Sequence[RecordingWalk], active: Sequence[int]) -> Choices:
        """The next choice of every active walk."""
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
        """The mean representation of every partition in the making, 0 for an empty one."""
        return torch.from_numpy(self.total[active] / numpy.maximum(self.size[active], 1)[:, None])


def _replayed(encoded: Encoded, contexts: Sequence[int], records: Sequence[WalkRecord]) -> Choices:
    """The choices of finished walks."""
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


def _replayed_summaries(
    encoded: Encoded, contexts: Sequence[int], walks: Sequence[RecordedWalk]
) -> Tensor:
    """The mean representation of the partition at every free choice, ``(D, units)``."""
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


def _likeliest(log_probs: Tensor) -> Tensor:
    """The cut if it is likelier than all candidates together, or else the likeliest candidate.

    Many candidates may be as good as each other; that there are many is no reason to cut.
    """
    best = log_probs[:, 1:].argmax(dim=1) + 1
    return best.masked_fill(log_probs[:, 0].exp() > 0.5, 0)


def _score(hidden: int) -> nn.Sequential:
    """A layer and a score that is near 0 for every input at first."""
    last = nn.Linear(hidden // 2, 1)
    nn.init.orthogonal_(last.weight, gain=0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(hidden, hidden // 2), nn.ReLU(), last)
