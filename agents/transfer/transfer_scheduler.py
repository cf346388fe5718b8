"""The scheduler that fits every number of partitions and accelerators (after drl-pp §3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drlpp.agents.paper.scheduler import AssignmentEvaluation
from drlpp.agents.transfer.context import ACCELERATOR_FEATURES
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.prospects import PAIR_NUMBERS, pair_features
from drlpp.agents.transfer.transfer_choices import Encoded
from drlpp.agents.transfer.walk_record import RecordedWalk
from drlpp.costs.stage_cost import Array

EMBEDDED_ACCELERATORS = 64
"""The number of accelerators with a learned part in their embedding; further ones have features
only."""

_EMBEDDING = 32


@dataclass(frozen=True)
class Partitions:
    """The partitions of P schemes, padded to K.

    Attributes:
        context: of every scheme, ``(P,)``.
        sums: of the partitions, ``(P, K, 4)``.
        exists: whether there is such a partition, ``(P, K)``.
        summaries: mean representations of the partitions, ``(P, K, units)``.
    """

    context: NDArray[numpy.int64]
    sums: Array
    exists: NDArray[numpy.bool_]
    summaries: Tensor

    @classmethod
    def of(
        cls, encoded: Encoded, contexts: Sequence[int], walks: Sequence[RecordedWalk]
    ) -> Partitions:
        """Collect the partitions of walks."""
        most = max(walk.stages for walk in walks)
        sums = numpy.zeros((len(walks), most, 4))
        exists = numpy.zeros((len(walks), most), dtype=bool)
        for row, walk in enumerate(walks):
            sums[row, : walk.stages] = walk.record.stage_sums
            exists[row, : walk.stages] = True
        offsets = encoded.batch.first[numpy.array(contexts)]
        operators = numpy.concatenate(
            [
                numpy.arange(len(w.stage_of_operator)) + at
                for w, at in zip(walks, offsets, strict=True)
            ]
        )
        stages = numpy.concatenate(
            [numpy.array(w.stage_of_operator) + row * most for row, w in enumerate(walks)]
        )
        index = torch.from_numpy(stages).to(encoded.nodes.device)
        members = encoded.nodes[torch.from_numpy(operators).to(index.device)]
        total = members.new_zeros(len(walks) * most, members.shape[1]).index_add(0, index, members)
        size = torch.bincount(index, minlength=len(total)).clamp(min=1)[:, None]
        return cls(
            context=numpy.array(contexts, dtype=numpy.int64),
            sums=sums,
            exists=exists,
            summaries=(total / size).view(len(walks), most, -1),
        )


class TransferScheduler(nn.Module):
    """Pairs accelerators with partitions, one accelerator after the other, the fastest first.

    The score of a pair sees what has been assigned so far
    (:func:`~drlpp.agents.transfer.prospects.pair_features`), so equal accelerators can choose
    differently. An accelerator's embedding is a projection of its features, and a learned part for
    its index, which is 0 before training. As with ``feasible=True`` in
    :class:`~drlpp.agents.paper.scheduler.PipelineScheduler`, when as many accelerators are left as
    there are partitions without one, they choose among those; every accelerator holds a partition.

    Args:
        units: width of the partitions' representations.
        context: width of the contexts' representations.
        hidden: width of the hidden layers.
    """

    def __init__(self, units: int, context: int, hidden: int) -> None:
        super().__init__()
        self.features = nn.Linear(ACCELERATOR_FEATURES, _EMBEDDING)
        self.embeddings = nn.Embedding(EMBEDDED_ACCELERATORS, _EMBEDDING)
        nn.init.zeros_(self.embeddings.weight)
        self.accelerator = nn.Linear(_EMBEDDING, hidden, bias=False)
        self.summary = nn.Linear(units, hidden, bias=False)
        self.context = nn.Linear(context, hidden, bias=False)
        self.pair = nn.Linear(PAIR_NUMBERS, hidden)
        # A bias would shift all scores alike, which the softmax does not see.
        last = nn.Linear(hidden // 2, 1, bias=False)
        nn.init.orthogonal_(last.weight, gain=0.01)
        self.score = nn.Sequential(nn.ReLU(), nn.Linear(hidden, hidden // 2), nn.ReLU(), last)

    @torch.inference_mode()
    def sample(
        self, encoded: Encoded, partitions: Partitions, deterministic: bool = False
    ) -> tuple[list[tuple[int, ...]], list[tuple[float, ...]]]:
        """Draw one assignment for every scheme.

        Returns:
            For every scheme the partition of every accelerator, and the logarithms of the
            probabilities, both in the order of the accelerators' numbers.
        """
        order = _Order.of(encoded.batch, partitions.context)
        fixed = self._fixed(encoded, partitions, order)
        count, most = partitions.exists.shape
        replicas, slowest = numpy.zeros((count, most)), numpy.full((count, most), numpy.inf)
        stage_of = numpy.zeros((count, order.most), dtype=numpy.int64)
        log_probs = numpy.zeros((count, order.most))
        rows = numpy.arange(count)
        for turn in range(order.most):
            scores = self._scores(
                encoded, partitions, fixed[:, turn], order, turn, replicas, slowest
            )
            policy = scores.log_softmax(dim=1)
            chosen = (
                policy.argmax(dim=1)
                if deterministic
                else torch.multinomial(policy.exp(), 1).squeeze(1)
            )
            taken = policy.gather(1, chosen[:, None]).squeeze(1).cpu().numpy()
            stages, there = chosen.cpu().numpy(), order.exists[:, turn]
            replicas[rows[there], stages[there]] += 1
            slowest[rows[there], stages[there]] = numpy.minimum(
                slowest[rows[there], stages[there]], order.speeds[there, turn]
            )
            stage_of[rows[there], order.index[there, turn]] = stages[there]
            log_probs[rows[there], order.index[there, turn]] = taken[there]
        counts = encoded.batch.accelerators[partitions.context].tolist()
        return (
            [tuple(row[:n]) for row, n in zip(stage_of.tolist(), counts, strict=True)],
            [tuple(row[:n]) for row, n in zip(log_probs.tolist(), counts, strict=True)],
        )

    def scores(
        self,
        encoded: Encoded,
        partitions: Partitions,
        stage_of_accelerator: Sequence[Sequence[int]],
    ) -> tuple[Tensor, NDArray[numpy.int64]]:
        """Score all choices that led to assignments, in one pass.

        Returns:
            ``(P, accelerators, K)`` by the accelerators' numbers, −∞ where a partition does not
            exist or may not be chosen, and the partition that each chose, ``(P, accelerators)``.
            Accelerators that a smaller cluster does not have may choose the first partition only.
        """
        order = _Order.of(encoded.batch, partitions.context)
        fixed = self._fixed(encoded, partitions, order)
        count, most = partitions.exists.shape
        chosen = numpy.zeros((count, order.most), dtype=numpy.int64)
        for row, stages in enumerate(stage_of_accelerator):
            chosen[row, : len(stages)] = stages
        by_turn = numpy.take_along_axis(chosen, order.index, axis=1)
        taken = (by_turn[..., None] == numpy.arange(most)) & order.exists[..., None]
        replicas = taken.cumsum(axis=1) - taken
        held = numpy.where(taken, order.speeds[..., None], numpy.inf)
        slowest = numpy.full(held.shape, numpy.inf)
        slowest[:, 1:] = numpy.minimum.accumulate(held, axis=1)[:, :-1]
        scores = torch.stack(
            [
                self._scores(
                    encoded,
                    partitions,
                    fixed[:, turn],
                    order,
                    turn,
                    replicas[:, turn].astype(float),
                    slowest[:, turn],
                )
                for turn in range(order.most)
            ],
            dim=1,
        )
        turn_of = torch.from_numpy(order.turn)[..., None].expand(-1, -1, most).to(scores.device)
        return scores.gather(1, turn_of), chosen

    def evaluate(
        self,
        encoded: Encoded,
        partitions: Partitions,
        stage_of_accelerator: Sequence[Sequence[int]],
    ) -> AssignmentEvaluation:
        """Replay assignments."""
        scores, stages = self.scores(encoded, partitions, stage_of_accelerator)
        log_policy = scores.log_softmax(dim=2)
        chosen = torch.from_numpy(stages).to(scores.device)[..., None]
        return AssignmentEvaluation(
            log_probs=log_policy.gather(2, chosen).squeeze(2),
            # Impossible choices have log-probability −∞, and 0 · ∞ is no number.
            entropies=-(log_policy.exp() * log_policy.clamp(min=-1e9)).sum(dim=2),
            free=scores.isfinite().sum(dim=2) > 1,
        )

    def _fixed(self, encoded: Encoded, partitions: Partitions, order: _Order) -> Tensor:
        """Compute what no choice changes, ``(P, A, K, hidden)``.

        The second axis is accelerators by turn, the third is partitions.
        """
        features = encoded.batch.accelerator_features[torch.from_numpy(partitions.context)]
        index = torch.from_numpy(order.index).to(features.device)
        by_turn = features.gather(1, index[..., None].expand(-1, -1, features.shape[2]))
        learned = self.embeddings(index.clamp(max=EMBEDDED_ACCELERATORS - 1))
        learned = learned * (index < EMBEDDED_ACCELERATORS)[..., None]
        accelerators = self.accelerator(torch.tanh(self.features(by_turn)) + learned)
        context = self.context(encoded.contexts)[torch.from_numpy(partitions.context)]
        stages = self.summary(partitions.summaries) + context[:, None]
        return accelerators[:, :, None] + stages[:, None]

    def _scores(
        self,
        encoded: Encoded,
        partitions: Partitions,
        fixed: Tensor,
        order: _Order,
        turn: int,
        replicas: Array,
        slowest: Array,
    ) -> Tensor:
        """Score the choices of one turn, ``(P, K)``."""
        batch, context, exists = encoded.batch, partitions.context, partitions.exists
        left = batch.accelerators[context] - turn
        numbers = pair_features(
            sums=partitions.sums,
            exists=exists,
            replicas=replicas,
            slowest=slowest,
            speeds=order.speeds[:, turn],
            left=left.astype(float),
            scales=batch.scales[context],
            estimates=encoded.estimates[context],
        )
        pairs = self.pair(torch.from_numpy(numbers.astype(numpy.float32)).to(fixed.device))
        unheld = exists & (replicas == 0)
        binding = unheld.sum(axis=1, keepdims=True) >= left[:, None]
        allowed = exists & (unheld | ~binding)
        allowed[left <= 0] = numpy.arange(exists.shape[1]) == 0
        scores = self.score(fixed + pairs).squeeze(2)
        return scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -torch.inf)


@dataclass(frozen=True)
class _Order:
    """Who chooses when, padded to the largest cluster.

    Attributes:
        index: the accelerator of every turn, ``(P, A)``.
        turn: the turn of every accelerator, ``(P, A)``.
        exists: whether there is such a turn, ``(P, A)``.
        speeds: of the accelerator of every turn, ``(P, A)``.
    """

    index: NDArray[numpy.int64]
    turn: NDArray[numpy.int64]
    exists: NDArray[numpy.bool_]
    speeds: Array

    @property
    def most(self) -> int:
        """The largest number of accelerators."""
        return self.index.shape[1]

    @classmethod
    def of(cls, batch: ContextBatch, context: NDArray[numpy.int64]) -> _Order:
        """Put the fastest first."""
        most = int(batch.accelerators.max())
        index = numpy.tile(numpy.arange(most), (len(batch.contexts), 1))
        speeds = numpy.ones(index.shape)
        for row, each in enumerate(batch.contexts):
            order = list(each.accelerator_order)
            index[row, : len(order)] = order
            assert each.costs is not None
            speeds[row, : len(order)] = each.costs.speeds[order]
        exists = numpy.arange(most) < batch.accelerators[:, None]
        return cls(index[context], index.argsort(axis=1)[context], exists[context], speeds[context])
