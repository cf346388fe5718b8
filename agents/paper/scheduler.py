"""The pipeline scheduler: which accelerator holds which partition (drl-pp §3.3)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn


class AssignmentEvaluation(NamedTuple):
    """What a policy thinks of assignments; every tensor has shape ``(placements, accelerators)``.

    ``free`` is false where an accelerator had only one stage to choose from.
    """

    log_probs: Tensor
    entropies: Tensor
    free: Tensor


class PipelineScheduler(nn.Module):
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
        super().__init__()
        self.feasible = feasible
        self.embeddings = nn.Embedding(accelerators, units)
        # A bias would shift all scores alike, which the softmax does not see.
        last = nn.Linear(units, 1, bias=False)
        nn.init.orthogonal_(last.weight, gain=0.01)
        self.pair_score = nn.Sequential(
            nn.Linear(2 * units, units), nn.Tanh(), nn.Linear(units, units), nn.Tanh(), last
        )

    def forward(self, summaries: Tensor, stages: Tensor) -> Tensor:
        """Score every pair.

        Args:
            summaries: of the partitions, ``(schemes, K, units)``, padded to K partitions.
            stages: how many of them there are, ``(schemes,)``.

        Returns:
            ``(schemes, accelerators, K)``, −∞ where there is no such partition.
        """
        accelerators, most = len(self.embeddings.weight), summaries.shape[1]
        pairs = torch.cat(
            [
                self.embeddings.weight[None, :, None].expand(len(summaries), -1, most, -1),
                summaries[:, None].expand(-1, accelerators, -1, -1),
            ],
            dim=-1,
        )
        missing = torch.arange(most, device=stages.device) >= stages[:, None]
        return self.pair_score(pairs).squeeze(-1).masked_fill(missing[:, None], -torch.inf)

    @torch.no_grad()
    def sample(self, scores: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor]:
        """Draw one assignment for every row of ``scores``.

        Returns:
            The stage of every accelerator and its log-probability, both
            ``(placements, accelerators)``.
        """
        stage_of = torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)
        log_probs = torch.zeros_like(stage_of, dtype=scores.dtype)
        for accelerator in range(scores.shape[1]):
            policy = self._masked(scores, stage_of, accelerator).log_softmax(dim=1)
            chosen = (
                policy.argmax(dim=1, keepdim=True)
                if deterministic
                else torch.multinomial(policy.exp(), 1)
            )
            stage_of[:, accelerator] = chosen.squeeze(1)
            log_probs[:, accelerator] = policy.gather(1, chosen).squeeze(1)
        return stage_of, log_probs

    def evaluate(self, scores: Tensor, stage_of_accelerator: Tensor) -> AssignmentEvaluation:
        """Replay assignments.

        Args:
            scores: of the pairs, ``(placements, accelerators, K)``.
            stage_of_accelerator: ``(placements, accelerators)``.
        """
        masked = torch.stack(
            [
                self._masked(scores, stage_of_accelerator, accelerator)
                for accelerator in range(scores.shape[1])
            ],
            dim=1,
        )
        log_policy = masked.log_softmax(dim=2)
        chosen = stage_of_accelerator.unsqueeze(2)
        return AssignmentEvaluation(
            log_probs=log_policy.gather(2, chosen).squeeze(2),
            # Impossible choices have log-probability −∞, and 0 · ∞ is no number.
            entropies=-(log_policy.exp() * log_policy.clamp(min=-1e9)).sum(dim=2),
            free=masked.isfinite().sum(dim=2) > 1,
        )

    def _masked(self, scores: Tensor, stage_of_accelerator: Tensor, accelerator: int) -> Tensor:
        """Score one accelerator's choices, ``(placements, K)``, after those before it."""
        own = scores[:, accelerator]
        if not self.feasible:
            return own
        unheld = own.isfinite().scatter(1, stage_of_accelerator[:, :accelerator], False)
        left = scores.shape[1] - accelerator
        binding = unheld.sum(dim=1, keepdim=True) >= left
        return own.masked_fill(binding & ~unheld, -torch.inf)
