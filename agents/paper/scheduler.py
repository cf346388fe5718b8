"""The pipeline scheduler: which accelerator holds which partition (drl-pp §3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def entropies(log_policy: Tensor) -> Tensor:
    """Return the entropies of distributions along the last dimension."""
    # Impossible choices have log-probability −∞, and 0 · ∞ is no number.
    return -(log_policy.exp() * log_policy.clamp(min=-1e9)).sum(dim=-1)


def drawn(log_policy: Tensor, deterministic: bool) -> Tensor:
    """Draw a choice of every row, or take the likeliest; ``(rows, choices)`` to ``(rows, 1)``."""
    if deterministic:
        return log_policy.argmax(dim=1, keepdim=True)
    return torch.multinomial(log_policy.exp(), 1)


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
        """Score all pairs.

        Args:
            summaries: of the partitions, ``(schemes, K, units)``, padded to K partitions.
            stages: how many of them there are, ``(schemes,)``.

        Returns:
            ``(schemes, A, K)``, −∞ for partitions that are not there.
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
        return self.pair_score(pairs).squeeze(-1).masked_fill(missing[:, None], -torch.inf)

    @torch.no_grad()
    def sample(self, scores: Tensor, deterministic: bool = False) -> tuple[Tensor, Tensor]:
        """Draw a partition for every accelerator of every placement, or take the likeliest.

        Args:
            scores: ``(placements, A, K)``.
            deterministic: whether to take the likeliest.

        Returns:
            The choices and their log-probabilities, both ``(placements, A)``.
        """
        chosen = torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)
        log_probs = torch.zeros_like(chosen, dtype=scores.dtype)
        for accelerator in range(scores.shape[1]):
            policy = self._masked(scores, chosen, accelerator).log_softmax(dim=1)
            choice = drawn(policy, deterministic)
            chosen[:, accelerator] = choice.squeeze(1)
            log_probs[:, accelerator] = policy.gather(1, choice).squeeze(1)
        return chosen, log_probs

    def evaluate(self, scores: Tensor, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Replay choices of ``scores``: their log-probabilities, entropies, and which were free."""
        columns = [self._masked(scores, chosen, index) for index in range(scores.shape[1])]
        masked = torch.stack(columns, dim=1)
        log_policy = masked.log_softmax(dim=2)
        log_probs = log_policy.gather(2, chosen.unsqueeze(2)).squeeze(2)
        return log_probs, entropies(log_policy), masked.isfinite().sum(dim=2) > 1

    def _masked(self, scores: Tensor, chosen: Tensor, accelerator: int) -> Tensor:
        """Score what an accelerator may choose after those before it, ``(placements, K)``."""
        own = scores[:, accelerator]
        if not self.feasible:
            return own
        unheld = own.isfinite().scatter(1, chosen[:, :accelerator], False)
        left = scores.shape[1] - accelerator
        binding = unheld.sum(dim=1, keepdim=True) >= left
        return own.masked_fill(binding & ~unheld, -torch.inf)
