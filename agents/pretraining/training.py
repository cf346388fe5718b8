"""The two stages one after the other, within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import numpy
import torch

from drlpp.agents.pretraining.imitation import imitation_loss
from drlpp.agents.pretraining.problems import ProblemStream, SolvedProblem
from drlpp.agents.pretraining.reinforcement import evaluate_rollout, sample_rollout
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import load_weights

Report = Callable[[str], None]


@dataclass(frozen=True)
class Pretraining:
    """How a policy is pre-trained.

    Attributes:
        minutes: of both stages together.
        seed: of weights and problems.
        start: weights to begin with.
        imitation_share: of the time, for stage 1.
        learning_rate: of Adam in stage 1; it falls to a twentieth along half a cosine.
        problems: imitated in a step of stage 1.
        new_problems: of them, never seen before.
        rl_learning_rate: in stage 2.
        rl_problems: in a rollout of stage 2, a quarter of them new.
        rl_placements: of each.
        rl_epochs: passes over a rollout.
        clip_range: of PPO.
        entropy: weight of the entropy in stage 2.
        rl_imitation: weight of imitation in stage 2, in the first pass over a rollout.
    """

    minutes: float
    seed: int = 0
    start: Path | None = None
    imitation_share: float = 0.4
    learning_rate: float = 1e-3
    problems: int = 64
    new_problems: int = 4
    rl_learning_rate: float = 5e-4
    rl_problems: int = 24
    rl_placements: int = 8
    rl_epochs: int = 2
    clip_range: float = 0.2
    entropy: float = 0.002
    rl_imitation: float = 0.1


@dataclass(frozen=True)
class Gaps:
    """How much longer greedy placements take than the optimum by the rule, in percent."""

    mean: float
    median: float
    ninety: float
    worst: float


def pretrain(
    options: Pretraining, report: Report, ahead: Iterable[SolvedProblem] = ()
) -> tuple[TransferNetwork, dict[str, str]]:
    """Train a network, and return it with what to note about it.

    Args:
        options: see there.
        report: gets a line at a time on how training proceeds.
        ahead: problems that were solved before, which come first; others are solved in between.
    """
    torch.manual_seed(options.seed)
    draw = Random(options.seed)
    unseen = ProblemStream(Random(options.seed + 1_000_003))
    stream = ProblemStream(draw, ahead=ahead)
    validation = [unseen.new() for _ in range(128)]
    for _ in range(options.problems):
        stream.new()
    network = TransferNetwork()
    before = {} if options.start is None else load_weights(network, options.start)
    seconds = options.minutes * 60
    imitation = _imitate(network, options, stream, validation, seconds, report, draw)
    share = 1 - options.imitation_share
    rollouts = _reinforce(network, options, stream, validation, seconds * share, report, draw)
    gaps = greedy_gaps(network, validation)
    report(f"after both stages: {gaps}")
    # Where the start came from is no one else's folder; its name is in the command.
    notes = {name: str(value) for name, value in asdict(options).items() if name != "start"}
    notes |= {f"start_{name}": value for name, value in before.items()}
    notes |= {"imitation_steps": str(imitation), "rollouts": str(rollouts)}
    notes |= {f"validation_{name}_percent": f"{value:.2f}" for name, value in asdict(gaps).items()}
    return network, notes


def _imitate(
    network: TransferNetwork,
    options: Pretraining,
    stream: ProblemStream,
    validation: Sequence[SolvedProblem],
    seconds: float,
    report: Report,
    draw: Random,
) -> int:
    optimizer = torch.optim.Adam(network.parameters(), lr=options.learning_rate)
    clock, steps, losses = _Clock(seconds * options.imitation_share), 0, []
    while clock.share < 1:
        _set_rate(optimizer, options.learning_rate, clock.share)
        problems = [stream.new() for _ in range(options.new_problems)]
        problems += stream.recent(options.problems - len(problems))
        loss = imitation_loss(network, problems, draw)
        _step(network, optimizer, loss.total)
        steps += 1
        losses.append([part.item() for part in loss])
        if clock.due():
            parts = " ".join(f"{value:.4f}" for value in numpy.mean(losses, axis=0))
            report(f"imitation {steps}: loss {parts}, {greedy_gaps(network, validation)}")
            losses = []
    return steps


def _reinforce(
    network: TransferNetwork,
    options: Pretraining,
    stream: ProblemStream,
    validation: Sequence[SolvedProblem],
    seconds: float,
    report: Report,
    draw: Random,
) -> int:
    optimizer = torch.optim.Adam(network.parameters(), lr=options.rl_learning_rate)
    clock, rollouts, means = _Clock(seconds), 0, []
    while clock.share < 1:
        _set_rate(optimizer, options.rl_learning_rate, clock.share)
        problems = [stream.new() for _ in range(options.rl_problems // 4)]
        problems += stream.recent(options.rl_problems - len(problems))
        rollout = sample_rollout(network, problems, options.rl_placements)
        for epoch in range(options.rl_epochs):
            update = evaluate_rollout(network, rollout, options.clip_range)
            entropy = update.partitioner_entropy + update.scheduler_entropy
            loss = update.policy_gradient_loss - options.entropy * entropy
            if epoch == 0:
                loss = loss + options.rl_imitation * imitation_loss(network, problems, draw).total
            _step(network, optimizer, loss)
        rollouts += 1
        means.append([float(numpy.median(rollout.gaps)), update.approx_kl, entropy.item()])
        if clock.due():
            median, kl, spread = numpy.mean(means, axis=0)
            report(
                f"rollout {rollouts}: sampled gap {100 * median:.2f}%, kl {kl:.4f}, "
                f"entropy {spread:.3f}, {greedy_gaps(network, validation)}"
            )
            means = []
    return rollouts


@torch.no_grad()
def greedy_gaps(network: TransferNetwork, problems: Sequence[SolvedProblem]) -> Gaps:
    """Return the gaps of the network's likeliest placements."""
    batch = ContextBatch.of([solved.context for solved in problems])
    found = network.sample(batch, range(len(problems)), deterministic=True)
    gaps = [100 * solved.gap(t) for solved, t in zip(problems, found, strict=True)]
    quantiles = [round(float(numpy.quantile(gaps, q)), 2) for q in (0.5, 0.9, 1.0)]
    return Gaps(round(float(numpy.mean(gaps)), 2), *quantiles)


def _step(network: TransferNetwork, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    # The learned part of accelerators is a live run's: it would tell accelerators of another
    # cluster by their numbers.
    network.scheduler.embeddings.weight.grad = None
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()


def _set_rate(optimizer: torch.optim.Optimizer, highest: float, share: float) -> None:
    rate = highest * (0.05 + 0.95 * (1 + math.cos(math.pi * min(share, 1))) / 2)
    for group in optimizer.param_groups:
        group["lr"] = rate


class _Clock:
    """How much of a time limit is over, and when the next report is due: twenty in all."""

    def __init__(self, seconds: float) -> None:
        self._seconds = max(seconds, 1e-9)
        self._begin = time.monotonic()
        self._reported = 0.0

    @property
    def share(self) -> float:
        """The part of the time limit that is over, 1 at the end."""
        return (time.monotonic() - self._begin) / self._seconds

    def due(self) -> bool:
        """Return whether it is time for a report, and wait for the next one if so."""
        if self.share < self._reported + 0.05:
            return False
        self._reported = self.share
        return True
