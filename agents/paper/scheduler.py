"""The pipeline scheduler: which accelerator holds which partition (drl-pp §3.3).

Where the method is chosen as well, that is done in the same way, pair by pair.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor, nn


class AssignmentEvaluation(NamedTuple):
    """What a policy thinks of assignments; every tensor has shape ``(placements, accelerators)``.

    ``free`` is false where an accelerator had only one stage to choose from. Where partitions
    choose a method, they stand for the accelerators.
    """

    log_probs: Tensor
    entropies: Tensor
    free: Tensor


class PairChooser(nn.Module):
    """Scores pairs of an embedding and a partition's summary, and draws a choice for every row.

    Args:
        embeddings: how many there are.
        units: width of summaries, embeddings and layers (drl-pp §4.2: 128).
    """

    def __init__(self, embeddings: int, units: int) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(embeddings, units)
        # A bias would shift all scores alike, which the softmax does not see.
        last = nn.Linear(units, 1, bias=False)
        nn.init.orthogonal_(last.weight, gain=0.01)
        self.pair_score = nn.Sequential(
            nn.Linear(2 * units, units), nn.Tanh(), nn.Linear(units, units), nn.Tanh(), last
        )

    def forward(self, summaries: Tensor, stages: Tensor) -> Tensor:
        """Score all that may be chosen.

        Args:
            summaries: of the partitions, ``(schemes, K, units)``, padded to K partitions.
            stages: how many of them there are, ``(schemes,)``.

        Returns:
            ``(schemes, rows, choices)``, −∞ for what is no choice.
        """
        count, most = len(self.embeddings.weight), summaries.shape[1]
        pairs = torch.cat(
            [
                self.embeddings.weight[None, :, None].expand(len(summaries), -1, most, -1),
                summaries[:, None].expand(-1, count, -1, -1),
            ],
            dim=-1,
        )
        missing = torch.arange(most, device=stages.device) >= stages[:, None]
        return self._choices(self.pair_score(pairs).squeeze(-1), missing)

    @abstractmethod
    def _choices(self, scores: Tensor, missing: Tensor) -> Tensor:
        """Return what may be chosen, row by row.

        Args:
            scores: of the pairs, ``(schemes, embeddings, K)``.
            missing: which partitions are not there, ``(schemes, K)``.
        """

    @torch.no_grad()
    def sample(self, scores: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor]:
        """Draw a choice for every row of every placement.

        Args:
            scores: ``(placements, rows, choices)``.
            deterministic: take the likeliest every time instead of drawing.

        Returns:
            The choices and their log-probabilities, both ``(placements, rows)``.
        """
        chosen = torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)
        log_probs = torch.zeros_like(chosen, dtype=scores.dtype)
        for row in range(scores.shape[1]):
            policy = self._masked(scores, chosen, row).log_softmax(dim=1)
            choice = (
                policy.argmax(dim=1, keepdim=True)
                if deterministic
                else torch.multinomial(policy.exp(), 1)
            )
            chosen[:, row] = choice.squeeze(1)
            log_probs[:, row] = policy.gather(1, choice).squeeze(1)
        return chosen, log_probs

    def evaluate(self, scores: Tensor, chosen: Tensor) -> AssignmentEvaluation:
        """Replay choices.

        Args:
            scores: ``(placements, rows, choices)``.
            chosen: ``(placements, rows)``.
        """
        rows = range(scores.shape[1])
        masked = torch.stack([self._masked(scores, chosen, row) for row in rows], dim=1)
        log_policy = masked.log_softmax(dim=2)
        return AssignmentEvaluation(
            log_probs=log_policy.gather(2, chosen.unsqueeze(2)).squeeze(2),
            # Impossible choices have log-probability −∞, and 0 · ∞ is no number.
            entropies=-(log_policy.exp() * log_policy.clamp(min=-1e9)).sum(dim=2),
            free=masked.isfinite().sum(dim=2) > 1,
        )

    def _masked(self, scores: Tensor, chosen: Tensor, row: int) -> Tensor:
        """Score the choices of a row, ``(placements, choices)``, after those of the rows before."""
        return scores[:, row]


class PipelineScheduler(PairChooser):
    """Pairs accelerators with partitions (drl-pp §3.3).

    The learnable embedding of every accelerator is concatenated with the summary of every
    partition, an MLP of two hidden layers scores the pair, and a softmax over the partitions,
    accelerator by accelerator, gives the policy; so every accelerator holds one partition.

    Nothing in the paper's policy keeps partitions from staying without an accelerator; such a
    placement is penalised. Four partitions on four accelerators are all held in only 9.4% of
    uniform draws. With ``feasible=True`` accelerators choose one after the other, and when as many
    are left as there are partitions without one, they choose among those. Every placement is then
    valid, every valid placement can be drawn, and its probability is still exact.

    Args:
        accelerators: A.
        units: width of summaries, embeddings and layers (drl-pp §4.2: 128).
        feasible: mask out choices that would leave a partition without an accelerator.
    """

    def __init__(self, accelerators: int, units: int = 128, feasible: bool = False) -> None:
        super().__init__(accelerators, units)
        self.feasible = feasible

    def _choices(self, scores: Tensor, missing: Tensor) -> Tensor:
        """Let every accelerator choose among the partitions that are there."""
        return scores.masked_fill(missing[:, None], -torch.inf)

    def _masked(self, scores: Tensor, chosen: Tensor, row: int) -> Tensor:
        own = super()._masked(scores, chosen, row)
        if not self.feasible:
            return own
        unheld = own.isfinite().scatter(1, chosen[:, :row], False)
        left = scores.shape[1] - row
        binding = unheld.sum(dim=1, keepdim=True) >= left
        return own.masked_fill(binding & ~unheld, -torch.inf)


class MethodChooser(PairChooser):
    """Chooses a method for every partition, or one for all of them, which is not the paper's.

    It pairs embeddings of methods with the partitions' summaries as the scheduler does
    accelerators, and a softmax over the methods, partition by partition, gives the policy. One
    method for all is the first partition's choice.

    Args:
        methods: M, to choose from.
        numbers: of methods in an action: 1, or K, one for each partition.
        units: width of summaries, embeddings and layers.
    """

    def __init__(self, methods: int, numbers: int, units: int = 128) -> None:
        super().__init__(methods, units)
        self.numbers = numbers

    def forward(self, summaries: Tensor, stages: Tensor) -> Tensor:
        """Score methods for as many partitions as there are numbers of methods."""
        return super().forward(summaries[:, : self.numbers], stages)

    def _choices(self, scores: Tensor, missing: Tensor) -> Tensor:
        """Let every partition choose a method; those that are not there have the first alone."""
        scores = scores.transpose(1, 2).clone()
        scores[..., 1:] = scores[..., 1:].masked_fill(missing[..., None], -torch.inf)
        return scores
