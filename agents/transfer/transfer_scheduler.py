"""The scheduler that fits every number of partitions and accelerators (after drl-pp §3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drlpp.agents.paper.scheduler import AssignmentEvaluation, drawn
from drlpp.agents.transfer.context import ACCELERATOR_FEATURES, ContextBatch
from drlpp.agents.transfer.priced_walk import PricedWalk
from drlpp.agents.transfer.prospects import PAIR_NUMBERS, pair_features
from drlpp.agents.transfer.transfer_encoder import Encoded
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
        cls, encoded: Encoded, contexts: Sequence[int], walks: Sequence[PricedWalk]
    ) -> Partitions:
        """Collect the partitions of walks."""
        counts = numpy.array([len(walk.stage_sums) for walk in walks])
        most = int(counts.max())
        exists = numpy.arange(most) < counts[:, None]
        sums = numpy.zeros((len(walks), most, 4))
        sums[exists] = [one for walk in walks for one in walk.stage_sums]
        context = numpy.array(contexts, dtype=numpy.int64)
        sizes = [len(walk.stage_of_operator) for walk in walks]
        operators = numpy.concatenate([numpy.arange(size) for size in sizes])
        operators += encoded.batch.first[context].repeat(sizes)
        stages = numpy.concatenate([walk.stage_of_operator for walk in walks])
        stages += (numpy.arange(len(walks)) * most).repeat(sizes)
        index = torch.from_numpy(stages).to(encoded.nodes.device)
        members = encoded.nodes[torch.from_numpy(operators).to(index.device)]
        total = members.new_zeros(len(walks) * most, members.shape[1]).index_add(0, index, members)
        size = torch.bincount(index, minlength=len(total)).clamp(min=1)[:, None]
        return cls(context, sums, exists, (total / size).view(len(walks), most, -1))


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

        def draw(scores: Tensor, _: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
            found: NDArray[numpy.int64] = (
                drawn(scores.log_softmax(dim=1), deterministic).squeeze(1).cpu().numpy()
            )
            return found

        scores, stages = self._in_turn(encoded, partitions, draw)
        chosen = torch.from_numpy(stages).to(scores.device)
        log_probs = AssignmentEvaluation.of(scores, chosen).log_probs
        counts = encoded.batch.accelerators[partitions.context].tolist()
        return (
            [tuple(row[:n]) for row, n in zip(stages.tolist(), counts, strict=True)],
            [tuple(row[:n]) for row, n in zip(log_probs.tolist(), counts, strict=True)],
        )

    def scores(
        self,
        encoded: Encoded,
        partitions: Partitions,
        stage_of_accelerator: Sequence[Sequence[int]],
    ) -> tuple[Tensor, Tensor]:
        """Score all choices that led to assignments.

        Returns:
            ``(P, accelerators, K)`` by the accelerators' numbers, −∞ where a partition does not
            exist or may not be chosen, and the partition that each chose, ``(P, accelerators)``.
            Accelerators that a smaller cluster does not have may choose the first partition only.
        """
        chosen = numpy.zeros(
            (len(stage_of_accelerator), int(encoded.batch.accelerators.max())), dtype=numpy.int64
        )
        for row, stages in enumerate(stage_of_accelerator):
            chosen[row, : len(stages)] = stages

        def replay(_: Tensor, accelerators: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
            return chosen[numpy.arange(len(chosen)), accelerators]

        scores, _ = self._in_turn(encoded, partitions, replay)
        return scores, torch.from_numpy(chosen).to(scores.device)

    def _in_turn(
        self,
        encoded: Encoded,
        partitions: Partitions,
        choose: Callable[[Tensor, NDArray[numpy.int64]], NDArray[numpy.int64]],
    ) -> tuple[Tensor, NDArray[numpy.int64]]:
        """Let one accelerator of every scheme after the other choose.

        Args:
            encoded: the contexts.
            partitions: of the schemes.
            choose: given the scores, ``(P, K)``, and whose turn it is, ``(P,)``, the partition
                that each chooses.

        Returns:
            The scores, ``(P, accelerators, K)``, and what was chosen, ``(P, accelerators)``.
        """
        batch, context, exists = encoded.batch, partitions.context, partitions.exists
        turns, of_turns = _fastest_first(batch)
        order, speeds = turns[context], of_turns[context]
        fixed = self._fixed(encoded, partitions, torch.from_numpy(order))
        rows = numpy.arange(len(context))
        replicas, slowest = numpy.zeros(exists.shape), numpy.full(exists.shape, numpy.inf)
        chosen = numpy.zeros(order.shape, dtype=numpy.int64)
        scores = []
        for turn, index in enumerate(order.T):
            left = batch.accelerators[context] - turn
            numbers = pair_features(
                encoded,
                context,
                partitions.sums,
                exists,
                replicas,
                slowest,
                speeds[:, turn],
                left,
            )
            pairs = self.pair(torch.from_numpy(numbers.astype(numpy.float32)).to(fixed.device))
            unheld = exists & (replicas == 0)
            binding = unheld.sum(axis=1, keepdims=True) >= left[:, None]
            allowed = exists & (unheld | ~binding)
            allowed[left <= 0] = numpy.arange(exists.shape[1]) == 0
            found = self.score(fixed[:, turn] + pairs).squeeze(2)
            forbidden = torch.from_numpy(~allowed).to(found.device)
            scores.append(found.masked_fill(forbidden, -torch.inf))
            taken = choose(scores[-1], index)
            there = left > 0
            at = rows[there], taken[there]
            replicas[at] += 1
            slowest[at] = numpy.minimum(slowest[at], speeds[there, turn])
            chosen[rows, index] = numpy.where(there, taken, 0)
        turn_of = torch.from_numpy(order.argsort(axis=1))[..., None].to(fixed.device)
        by_turn = torch.stack(scores, dim=1)
        return by_turn.gather(1, turn_of.expand(-1, -1, exists.shape[1])), chosen

    def _fixed(self, encoded: Encoded, partitions: Partitions, order: Tensor) -> Tensor:
        """Compute what no choice changes, ``(P, A, K, hidden)``, for accelerators in ``order``."""
        features = encoded.batch.accelerator_features[torch.from_numpy(partitions.context)]
        index = order.to(features.device)
        by_turn = features.gather(1, index[..., None].expand(-1, -1, features.shape[2]))
        learned = self.embeddings(index.clamp(max=EMBEDDED_ACCELERATORS - 1))
        learned = learned * (index < EMBEDDED_ACCELERATORS)[..., None]
        accelerators = self.accelerator(torch.tanh(self.features(by_turn)) + learned)
        context = self.context(encoded.contexts)[torch.from_numpy(partitions.context)]
        stages = self.summary(partitions.summaries) + context[:, None]
        return accelerators[:, :, None] + stages[:, None]


def _fastest_first(batch: ContextBatch) -> tuple[NDArray[numpy.int64], Array]:
    """Return whose turn it is, turn by turn, and their speeds; padded, both ``(C, A)``."""
    most = int(batch.accelerators.max())
    index = numpy.tile(numpy.arange(most), (len(batch.contexts), 1))
    speeds = numpy.ones(index.shape)
    for row, each in enumerate(batch.contexts):
        order = list(each.accelerator_order)
        index[row, : len(order)] = order
        speeds[row, : len(order)] = each.costs.speeds[order]
    return index, speeds
