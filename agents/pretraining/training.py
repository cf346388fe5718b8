"""Pre-training within a time limit: imitate optima, then make those likelier that are fast."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray

from drlpp.agents.paper.algorithm import Batch, Update, evaluate_batch
from drlpp.agents.paper.rollout import Trajectory
from drlpp.agents.pretraining.imitation import imitation_loss
from drlpp.agents.pretraining.problems import ProblemStream, SolvedProblem
from drlpp.agents.transfer.context import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import load_weights

_VALIDATED = 128
"""Problems that gaps are reported of."""

_IMITATED, _NEW = 64, 4
"""Problems in a step of imitation, and those of them that were never seen before."""

_IMITATION_SHARE, _IMITATION_RATE = 0.4, 1e-3
"""Of the time; Adam's rate in it, which falls to a twentieth along half a cosine."""

_ROLLOUT, _PLACEMENTS, _EPOCHS = 24, 8, 2
"""Problems in a rollout, a quarter of them new; placements of each; passes over a rollout."""

_PPO_LEARNING_RATE, _CLIP_RANGE, _ENTROPY = 5e-4, 0.2, 0.002
_PPO_IMITATION = 0.1
"""Weight of imitation in the first pass over a rollout."""

_SMALLEST_SPREAD = 0.03
"""Standard deviation of a problem's rewards below which differences are left small: 3%."""


class Gaps(NamedTuple):
    """How much longer greedy placements take than the optimum by the rule, in percent."""

    mean: float
    median: float
    ninety: float
    worst: float


class Rollout(NamedTuple):
    """Placements of several problems, as many of each.

    Attributes:
        batch: the problems' contexts.
        contexts: for every trajectory the index of its problem.
        trajectories: what was sampled.
        gaps: how much longer each takes than the optimum.
        advantages: −ln(seconds) above the mean of the same problem's, in standard deviations.
    """

    batch: ContextBatch
    contexts: list[int]
    trajectories: list[Trajectory]
    gaps: NDArray[numpy.float64]
    advantages: NDArray[numpy.float64]


def pretrain(
    minutes: float,
    seed: int,
    start: Path | None,
    report: Callable[[str], None],
) -> tuple[TransferNetwork, dict[str, str]]:
    """Train a network, and return it with what to note about it.

    Args:
        minutes: of both stages together.
        seed: of weights and problems.
        start: weights to begin with.
        report: gets a line at a time on how training proceeds.
    """
    torch.manual_seed(seed)
    draw = Random(seed)
    unseen = ProblemStream(Random(seed + 1_000_003))
    stream = ProblemStream(draw)
    validation = [unseen.new() for _ in range(_VALIDATED)]
    for _ in range(_IMITATED):
        stream.new()
    network = TransferNetwork()
    before = {} if start is None else load_weights(network, start)
    seconds = minutes * 60 * _IMITATION_SHARE
    optimizer = torch.optim.Adam(network.parameters(), lr=_IMITATION_RATE)
    steps, losses = 0, []
    for due in _timed(optimizer, _IMITATION_RATE, seconds):
        problems = [stream.new() for _ in range(_NEW)]
        problems += stream.recent(_IMITATED - len(problems))
        loss = imitation_loss(network, problems, draw)
        _step(network, optimizer, loss.total)
        steps += 1
        losses.append([part.item() for part in loss])
        if due:
            parts = " ".join(f"{value:.4f}" for value in numpy.mean(losses, axis=0))
            report(f"imitation {steps}: loss {parts}, {greedy_gaps(network, validation)}")
            losses = []
    optimizer = torch.optim.Adam(network.parameters(), lr=_PPO_LEARNING_RATE)
    rollouts, means = 0, []
    for due in _timed(optimizer, _PPO_LEARNING_RATE, minutes * 60 - seconds):
        problems = [stream.new() for _ in range(_ROLLOUT // 4)]
        problems += stream.recent(_ROLLOUT - len(problems))
        means.append(_reinforce(network, optimizer, problems, draw))
        rollouts += 1
        if due:
            median, kl, spread = numpy.mean(means, axis=0)
            report(
                f"rollout {rollouts}: sampled gap {100 * median:.2f}%, kl {kl:.4f}, "
                f"entropy {spread:.3f}, {greedy_gaps(network, validation)}"
            )
            means = []
    gaps = greedy_gaps(network, validation)
    report(f"after both stages: {gaps}")
    notes = {"minutes": str(minutes), "seed": str(seed)}
    notes |= {f"start_{name}": value for name, value in before.items()}
    notes |= {"imitation_steps": str(steps), "rollouts": str(rollouts)}
    notes |= {f"validation_{name}_percent": f"{gap:.2f}" for name, gap in gaps._asdict().items()}
    return network, notes


def _reinforce(
    network: TransferNetwork,
    optimizer: torch.optim.Optimizer,
    problems: Sequence[SolvedProblem],
    draw: Random,
) -> tuple[float, float, float]:
    """Update on a rollout; return its median gap, and the last pass's KL and entropy."""
    rollout = sample_rollout(network, problems, _PLACEMENTS)
    for epoch in range(_EPOCHS):
        update = evaluate_rollout(network, rollout, _CLIP_RANGE)
        entropy = update.partitioner_entropy + update.scheduler_entropy
        loss = update.policy_gradient_loss - _ENTROPY * entropy
        if epoch == 0:
            loss = loss + _PPO_IMITATION * imitation_loss(network, problems, draw).total
        _step(network, optimizer, loss)
    return float(numpy.median(rollout.gaps)), update.approx_kl, entropy.item()


def sample_rollout(
    network: TransferNetwork, problems: Sequence[SolvedProblem], placements: int
) -> Rollout:
    """Sample ``placements`` of every problem and evaluate them by the rule."""
    batch = ContextBatch.of([solved.context for solved in problems])
    contexts = [index for index in range(len(problems)) for _ in range(placements)]
    trajectories = network.sample(batch, contexts)
    gaps = numpy.array(
        [problems[i].gap(t) for i, t in zip(contexts, trajectories, strict=True)]
    ).reshape(len(problems), placements)
    rewards = -numpy.log1p(gaps)
    spread = numpy.maximum(rewards.std(axis=1, keepdims=True), _SMALLEST_SPREAD)
    advantages = (rewards - rewards.mean(axis=1, keepdims=True)) / spread
    return Rollout(batch, contexts, trajectories, gaps.ravel(), advantages.ravel())


def evaluate_rollout(network: TransferNetwork, rollout: Rollout, clip_range: float) -> Update:
    """Compute PPO's objective on a rollout (:func:`evaluate_batch`)."""
    walks = [trajectory.walk for trajectory in rollout.trajectories]
    advantages = torch.from_numpy(rollout.advantages.astype(numpy.float32))
    evaluation = network.evaluate(
        rollout.batch, rollout.contexts, walks, rollout.contexts, rollout.trajectories
    )
    most = evaluation.scheduler_free.shape[1]
    padded = [
        Trajectory(
            t.walk, t.stage_of_accelerator, t.log_probs + (math.nan,) * (most - len(t.log_probs))
        )
        for t in rollout.trajectories
    ]
    return evaluate_batch(Batch(walks, advantages, padded, advantages), evaluation, clip_range)


@torch.no_grad()
def greedy_gaps(network: TransferNetwork, problems: Sequence[SolvedProblem]) -> Gaps:
    """Return the gaps of the network's likeliest placements."""
    batch = ContextBatch.of([solved.context for solved in problems])
    found = network.sample(batch, range(len(problems)), deterministic=True)
    gaps = [100 * solved.gap(t) for solved, t in zip(problems, found, strict=True)]
    quantiles = [round(float(numpy.quantile(gaps, q)), 2) for q in (0.5, 0.9, 1.0)]
    return Gaps(round(float(numpy.mean(gaps)), 2), *quantiles)


def _timed(optimizer: torch.optim.Optimizer, highest_rate: float, seconds: float) -> Iterator[bool]:
    """Yield until time is over, with a falling learning rate; true where a report is due."""
    begin, reported = time.monotonic(), 0.0
    while (share := (time.monotonic() - begin) / max(seconds, 1e-9)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = highest_rate * (0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2)
        due = share >= reported + 0.05
        reported = share if due else reported
        yield due


def _step(network: TransferNetwork, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    # The learned part of accelerators is a live run's: it would tell accelerators of another
    # cluster by their numbers.
    network.scheduler.embeddings.weight.grad = None
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
