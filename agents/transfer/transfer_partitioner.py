"""The partitioner that fits every graph and cluster (after drl-pp §3.2, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import torch
from torch import Tensor, nn

from drlpp.agents.paper.walk import CUT
from drlpp.agents.transfer.prospects import PARTITION_NUMBERS
from drlpp.agents.transfer.transfer_choices import (
    Choices,
    Encoded,
    WalkStates,
    prospects_of,
    replayed_choices,
    replayed_summaries,
)
from drlpp.agents.transfer.walk_record import RecordedWalk, RecordingWalk
from drlpp.costs.stage_cost import Array


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
        states = WalkStates.empty(encoded, contexts)
        projected = self.operator(encoded.nodes)
        while active := states.advance(walks):
            choices = states.choices(walks, active)
            needed, logits = self._logits(
                encoded, projected, choices, states.summaries(active).to(projected.device)
            )
            log_probs = logits.log_softmax(dim=1)
            columns = _likeliest(log_probs) if deterministic else _drawn(log_probs)
            taken = log_probs.gather(1, columns[:, None]).squeeze(1).tolist()
            for row, (index, column) in enumerate(zip(active, columns.tolist(), strict=True)):
                states.take(walks[index], index, column - 1 if column else CUT, taken[row])
                if not column:
                    states.cut(index, choices.sums[row, 0], needed[row])
        return [walk.result() for walk in walks]

    def logits(
        self, encoded: Encoded, contexts: Sequence[int], walks: Sequence[RecordedWalk]
    ) -> tuple[Tensor, Tensor]:
        """Score every free choice of finished walks, in one pass.

        Args:
            encoded: the contexts.
            contexts: for every walk, the index of its context.
            walks: with records.

        Returns:
            Scores of the cut (column 0) and of the candidates, −∞ where there is none,
            ``(D, 1 + most candidates)``, and the column that was chosen, ``(D,)``.
        """
        records = [walk.record for walk in walks]
        choices = replayed_choices(encoded, contexts, records)
        _, logits = self._logits(
            encoded,
            self.operator(encoded.nodes),
            choices,
            replayed_summaries(encoded, contexts, walks),
        )
        chosen = numpy.concatenate([record.choice for record in records]) + 1
        return logits, torch.from_numpy(chosen).to(logits.device)

    def _logits(
        self, encoded: Encoded, projected: Tensor, choices: Choices, summaries: Tensor
    ) -> tuple[Array, Tensor]:
        """Return the accelerators that the partitions need, and the scores."""
        numbers, needed = prospects_of(encoded, choices)
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
        possible = torch.from_numpy(choices.may_cut[:, None]).to(projected.device)
        first_column = cuts.masked_fill(~possible, -torch.inf)
        return needed[:decisions], torch.cat([first_column, logits[:, 1:]], dim=1)


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
