"""The partitioner that fits every graph and cluster (after drl-pp §3.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from drlpp.agents.paper.walk import CUT
from drlpp.agents.transfer.priced_walk import PricedWalk, PricingWalk, Standing, Sums
from drlpp.agents.transfer.prospects import PARTITION_NUMBERS, TARGETS, partition_features
from drlpp.agents.transfer.relative_costs import ideals_by_replicas, replicas_needed
from drlpp.agents.transfer.transfer_encoder import Encoded
from drlpp.costs.stage_cost import Array


class Choices(NamedTuple):
    """D choices with C candidates together, as the partitioner sees them.

    Attributes:
        context: of every choice, ``(D,)``.
        may_cut: ``(D,)``.
        counts: candidates of every choice, ``(D,)``.
        candidates: as operators of the batch, ``(C,)``.
        numbers: on the partitions as they are, then on those with each candidate,
            ``(D + C, PARTITION_NUMBERS)``.
    """

    context: NDArray[numpy.int64]
    may_cut: NDArray[numpy.bool_]
    counts: NDArray[numpy.int64]
    candidates: NDArray[numpy.int64]
    numbers: Array

    @classmethod
    def of(
        cls,
        encoded: Encoded,
        contexts: Sequence[int],
        standings: Sequence[Sequence[Standing]],
        stage_sums: Sequence[Sequence[Sums]],
    ) -> Choices:
        """Collect choices of walks.

        Args:
            encoded: the contexts.
            contexts: for every walk, the index of its context.
            standings: for every walk, before each of the choices.
            stage_sums: for every walk, of its finished partitions.
        """
        batch = encoded.batch
        flat = [standing for each in standings for standing in each]
        context = numpy.repeat(numpy.array(contexts), [len(each) for each in standings])
        counts = numpy.array([len(standing.candidates) for standing in flat])
        operators = [operator for standing in flat for operator in standing.candidates]
        both = numpy.concatenate([numpy.arange(len(flat)), numpy.arange(len(flat)).repeat(counts)])
        sums = [standing.sums for standing in flat]
        sums += [outlook for standing in flat for outlook in standing.outlook]
        before = _before(encoded, contexts, standings, stage_sums)[both]
        cuts = numpy.array([standing.cuts for standing in flat])
        numbers = partition_features(encoded, context[both], numpy.array(sums), before, cuts[both])
        may_cut = numpy.array([standing.may_cut for standing in flat])
        candidates = numpy.array(operators) + batch.first[context].repeat(counts)
        return cls(context, may_cut, counts, candidates, numbers)


def _before(
    encoded: Encoded,
    contexts: Sequence[int],
    standings: Sequence[Sequence[Standing]],
    stage_sums: Sequence[Sequence[Sums]],
) -> Array:
    """Return the work of earlier partitions, and the accelerators that they need for each target.

    Returns:
        ``(D, 1 + targets)``.
    """
    batch, counts = encoded.batch, [len(each) for each in stage_sums]
    context = numpy.repeat(numpy.array(contexts), counts)
    sums = numpy.array([one for each in stage_sums for one in each]).reshape(-1, 4)
    needed = replicas_needed(
        ideals_by_replicas(sums, batch.scales[context], int(batch.accelerators.max())),
        encoded.estimates[context, None] * TARGETS,
        batch.accelerators[context],
    )
    of_stages = numpy.split(numpy.column_stack([sums[:, 0], needed]), numpy.cumsum(counts)[:-1])
    rows = []
    for stages, each in zip(of_stages, standings, strict=True):
        totals = numpy.zeros((len(stages) + 1, 1 + len(TARGETS)))
        totals[1:] = stages.cumsum(axis=0)
        rows.append(totals[[standing.cuts for standing in each]])
    return numpy.concatenate(rows)


class TransferPartitioner(nn.Module):
    """Scores cuts and candidates by representations and by what the rule says of them.

    The walk is Algorithm 1's. A partition is a set, so what counts is which operators it has, not
    in which order they came: where the paper has two LSTMs, here are the mean representation of the
    partition, and its running sums with what follows from them
    (:func:`~drlpp.agents.transfer.prospects.partition_features`), for the partition as it is and
    with each of the candidates. So nothing has to be carried from choice to choice, a whole episode
    is evaluated in one pass, and weights fit every number of operators and accelerators.

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

    @torch.inference_mode()
    def sample(
        self, encoded: Encoded, contexts: Sequence[int], deterministic: bool = False
    ) -> list[PricedWalk]:
        """Walk through graphs, all walks in step.

        Args:
            encoded: the contexts.
            contexts: for every walk, the index of its context.
            deterministic: take the likeliest choice every time instead of sampling; a cut if it is
                likelier than all candidates together.
        """
        walks = [PricingWalk(encoded.batch.contexts[context]) for context in contexts]
        projected = self.operator(encoded.nodes)
        nodes = encoded.nodes.cpu().numpy()
        while active := [row for row, walk in enumerate(walks) if _has_a_choice(walk)]:
            standing = [[walks[row].standing] for row in active]
            of_active = [contexts[row] for row in active]
            finished = [walks[row].stage_sums for row in active]
            choices = Choices.of(encoded, of_active, standing, finished)
            means = []
            for row, (now,) in zip(active, standing, strict=True):
                members = numpy.array(walks[row].order[now.first :], dtype=numpy.int64)
                total = nodes[members + encoded.batch.first[contexts[row]]].sum(axis=0)
                means.append(total / numpy.float32(max(len(members), 1)))
            summaries = torch.from_numpy(numpy.stack(means)).to(projected.device)
            log_probs = self._logits(encoded, projected, choices, summaries).log_softmax(dim=1)
            columns = _likeliest(log_probs) if deterministic else _drawn(log_probs)
            taken = log_probs.gather(1, columns[:, None]).squeeze(1).tolist()
            for row, column, log_prob in zip(active, columns.tolist(), taken, strict=True):
                walks[row].take(column - 1 if column else CUT, log_prob)
        return [walk.result() for walk in walks]

    def logits(
        self, encoded: Encoded, contexts: Sequence[int], walks: Sequence[PricedWalk]
    ) -> tuple[Tensor, Tensor]:
        """Score every free choice of finished walks, in one pass.

        Args:
            encoded: the contexts.
            contexts: for every walk, the index of its context.
            walks: with the costs of these contexts.

        Returns:
            Scores of the cut (column 0) and of the candidates, −∞ where there is none,
            ``(D, 1 + most candidates)``, and the column that was chosen, ``(D,)``.
        """
        choices = Choices.of(
            encoded,
            contexts,
            [walk.standings for walk in walks],
            [walk.stage_sums for walk in walks],
        )
        projected = self.operator(encoded.nodes)
        summaries = _replayed_summaries(encoded, contexts, walks)
        logits = self._logits(encoded, projected, choices, summaries)
        chosen = torch.tensor([choice + 1 for walk in walks for choice in walk.chosen])
        return logits, chosen.to(logits.device)

    def _logits(
        self, encoded: Encoded, projected: Tensor, choices: Choices, summaries: Tensor
    ) -> Tensor:
        decisions = len(choices.counts)
        both = torch.from_numpy(choices.numbers.astype(numpy.float32)).to(projected.device)
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
        possible = torch.from_numpy(choices.may_cut[:, None]).to(projected.device)
        first_column = cuts.masked_fill(~possible, -torch.inf)
        return torch.cat([first_column, logits[:, 1:]], dim=1)


def _has_a_choice(walk: PricingWalk) -> bool:
    """Make the forced choices of a walk; false if it has ended."""
    while not walk.finished and walk.forced:
        walk.take(0, 0.0)
    return not walk.finished


def _replayed_summaries(
    encoded: Encoded, contexts: Sequence[int], walks: Sequence[PricedWalk]
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
    columns = numpy.repeat(numpy.arange(len(walks)), [len(walk.standings) for walk in walks])
    positions = [(one.placed, one.first) for walk in walks for one in walk.standings]
    placed, first = numpy.array(positions).T
    now, then = (
        torch.from_numpy(position * len(walks) + columns).to(nodes.device)
        for position in (placed, first)
    )
    count = torch.from_numpy(numpy.maximum(placed - first, 1)).to(nodes)[:, None]
    return (running.index_select(0, now) - running.index_select(0, then)) / count


def _likeliest(log_probs: Tensor) -> Tensor:
    """Return the cut if it is likelier than all candidates together, or else the likeliest.

    Many candidates may be as good as each other; that there are many is no reason to cut.
    """
    best = log_probs[:, 1:].argmax(dim=1) + 1
    return best.masked_fill(log_probs[:, 0].exp() > 0.5, 0)


def _drawn(log_probs: Tensor) -> Tensor:
    """Draw a choice of every row by its probability.

    For few rows, this is faster than torch.multinomial.
    """
    # The largest of log-probabilities with Gumbel noise: an impossible choice stays impossible.
    noise = torch.empty_like(log_probs).exponential_().clamp_(min=1e-30).log_()
    return (log_probs - noise).argmax(dim=1)


def _score(hidden: int) -> nn.Sequential:
    """Make a layer and a score that is near 0 for every input at first."""
    last = nn.Linear(hidden // 2, 1)
    nn.init.orthogonal_(last.weight, gain=0.01)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(hidden, hidden // 2), nn.ReLU(), last)
