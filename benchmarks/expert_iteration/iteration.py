"""The search makes pairs of a problem and its best candidate; the policy imitates them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Literal

import numpy
import torch

from benchmarks.cells import Where, all_of, read_results_of, run_cells
from benchmarks.expert_iteration.problems import training_problem
from benchmarks.learning.policy_proposals import network_of, sampled
from drlpp.agents.pretraining.imitation import imitation_loss
from drlpp.agents.pretraining.problems import SolvedProblem
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.weights import PRETRAINED, save_weights
from drlpp.io.documents import Record
from drlpp.placement.placement import Placement, Stage
from drlpp.planners import Limits, Space, baseline_plans
from drlpp.planners.candidates import Judge, search
from drlpp.schedule.method import Method

_LIMITS = Limits(judged=400, steps=400_000, patience=2)
"""Of the search for a pair: about a second."""

_BATCH = 24
_LEARNING_RATE = 4e-4

Report = Callable[[str], None]


class Pair(Record):
    """A problem, by its number, and the fastest placement that the search knows.

    Attributes:
        number: of the problem.
        generation: of the policy that proposed to the search.
        stages: operators and accelerators of each.
        seconds: per minibatch, simulated in steady state.
        planned: of the planners' fastest.
        sampled: of the policy's fastest before the search.
    """

    kind: Literal["pair"] = "pair"
    number: int
    generation: int
    stages: tuple[Stage, ...]
    seconds: float
    planned: float
    sampled: float

    @property
    def cell(self) -> tuple[int, int]:
        """The number and the generation."""
        return self.generation, self.number


@dataclass(frozen=True)
class Iteration:
    """How it is done.

    Attributes:
        pairs: made in a generation.
        generations: of pairs and policies.
        minutes: of imitation in a generation.
        folder: of pairs and weights, by generation; what is there is not made again.
    """

    pairs: int
    generations: int
    minutes: float
    folder: Path


def iterate(options: Iteration, where: Where, report: Report) -> Path:
    """Run all generations that are not there yet, and return the last one's weights."""
    weights = PRETRAINED
    for generation in range(options.generations):
        pairs = run_cells(
            partial(make_pair, weights=weights),
            all_of(_cells(options, generation), lambda pair: pair.cell),
            options.folder / "pairs.jsonl",
            partial(read_results_of, "benchmarks.expert_iteration", Pair),
            where,
        )
        known = [pair for pair in pairs if pair.generation <= generation]
        latest = [pair for pair in known if pair.generation == generation]
        report(f"generation {generation}: {_gains(latest)}")
        path = options.folder / f"policy-{generation}.safetensors"
        if not path.exists():
            imitate(known, weights, path, options.minutes, generation, report)
        weights = path
    return weights


def _cells(options: Iteration, generation: int) -> list[tuple[int, int]]:
    first = generation * options.pairs
    return [(generation, number) for number in range(first, first + options.pairs)]


def _gains(pairs: Sequence[Pair]) -> str:
    policy = [100 * (pair.sampled / pair.seconds - 1) for pair in pairs]
    planned = [100 * (pair.planned / pair.seconds - 1) for pair in pairs]
    return (
        f"{len(pairs)} pairs; the planners' fastest is {numpy.median(planned):.1f}% above the "
        f"search's in the median, the policy's {numpy.median(policy):.1f}%"
    )


def make_pair(cell: tuple[int, int], weights: Path) -> Pair:
    """Search for the best placement of a problem, from the planners' and the policy's."""
    generation, number = cell
    torch.manual_seed(number)
    problem = training_problem(number)
    space = Space(Method(), frozenset())
    judge = Judge(problem, space)
    plans = [plan.candidate for plan in baseline_plans(problem, space)]
    drawn = sampled(network_of(weights), problem, 8)
    best_drawn = min(drawn, key=judge)
    found = search(judge, [*plans, best_drawn], _LIMITS, seed=number)[0]
    return Pair(
        number=number,
        generation=generation,
        stages=found.placement.stages,
        seconds=found.seconds_per_minibatch,
        planned=min(judge.exactly(plan) for plan in plans),
        sampled=judge.exactly(best_drawn),
    )


def imitate(
    pairs: Sequence[Pair], start: Path, path: Path, minutes: float, seed: int, report: Report
) -> None:
    """Train from the weights ``start`` on all pairs for some minutes, and write what comes out."""
    torch.manual_seed(seed)
    draw = Random(seed)
    network = network_of(start)
    solved = [_solved(pair) for pair in pairs]
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    begin, step, losses = time.monotonic(), 0, []
    while (share := (time.monotonic() - begin) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * (0.05 + 0.95 * (1 + math.cos(math.pi * share)) / 2)
        loss = imitation_loss(network, draw.sample(solved, min(_BATCH, len(solved))), draw)
        optimizer.zero_grad()
        loss.total.backward()
        # The learned part of accelerators is a live run's.
        network.scheduler.embeddings.weight.grad = None
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        step += 1
        losses.append(loss.total.item())
        if step % 50 == 0:
            report(f"imitation {step}: loss {numpy.mean(losses[-50:]):.3f}")
    notes = {"command": "python -m benchmarks.expert_iteration train", "steps": str(step)}
    _save(network, path, notes | {"pairs": str(len(pairs))})


def _save(network: TransferNetwork, path: Path, notes: dict[str, str]) -> None:
    unfinished = path.with_suffix(".unfinished")
    save_weights(network, unfinished, notes)
    unfinished.replace(path)


def _solved(pair: Pair) -> SolvedProblem:
    """Return the pair as the imitation wants it: no accelerator idle, cut as late as possible."""
    optimum = Placement(stages=pair.stages)
    return SolvedProblem.of("searched", training_problem(pair.number), optimum)
