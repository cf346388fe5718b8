"""One held-out problem, one seed, one kind of proposals: what is found, at equal time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from random import Random

import torch

from benchmarks.expert_iteration.problems import held_out_problem
from benchmarks.expert_iteration.proposals import bred
from benchmarks.learning.policy_proposals import PROPOSED, SAMPLES, network_of, sampled
from drlpp.agents.transfer.weights import PRETRAINED
from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.planners import Limits, PlanningProblem, Space, baseline_plans, starts_of
from drlpp.planners.candidates import Judge, search
from drlpp.schedule.method import Method

SECONDS = (1.0, 4.0, 8.0)
"""Processor seconds after which is looked at what was found."""

_ENDLESS = Limits(judged=10**9, steps=10**12, patience=10**6)


class Arm(StrEnum):
    """What proposes to the search."""

    NOTHING = "search alone"
    EVOLUTION = "as many evolution samples"
    PRETRAINED = "today's policy"
    EXPERT = "the new policy"


class Cell(Record):
    """A held-out problem, who proposes, and a seed of the search and the proposals."""

    problem: int
    arm: Arm
    seed: int


class Run(Record):
    """What came out.

    Attributes:
        cell: what was run.
        planned: seconds per minibatch of the fastest of the planners and data parallelism at its
            best depth, with which all begin.
        found: of the fastest after :data:`SECONDS`.
    """

    cell: Cell
    planned: float
    found: tuple[float, ...]


class _TimeIsUpError(Exception):
    """The last moment at which is looked at what was found."""


class _TimedJudge(Judge):
    """A judge that notes what the fastest was after some seconds of the processor."""

    def __init__(self, problem: PlanningProblem, space: Space, moments: Sequence[float]) -> None:
        super().__init__(problem, space)
        self.found: list[float] = []
        self._begin, self._moments, self._best = time.process_time(), moments, math.inf

    def __call__(self, candidate: Candidate, limit: float = math.inf) -> float:
        """Judge as any judge does.

        Raises:
            _TimeIsUpError: after the last moment.
        """
        now = time.process_time() - self._begin
        while now > self._moments[len(self.found)]:
            self.found.append(self._best)
            if len(self.found) == len(self._moments):
                raise _TimeIsUpError
        seconds = super().__call__(candidate, limit)
        if seconds <= limit:
            self._best = min(self._best, seconds)
        return seconds


def run(cell: Cell, expert: Path, seconds: Sequence[float] = SECONDS) -> Run:
    """Run a cell; the time of the proposals counts, that of the planners does not."""
    torch.manual_seed(cell.seed)
    problem, space = held_out_problem(cell.problem), Space(Method())
    plans, planned = planned_for(cell.problem)
    propose = _proposer(cell, problem, plans, expert)
    judge = _TimedJudge(problem, space, seconds)
    with suppress(_TimeIsUpError):
        proposed = sorted(propose(), key=judge)[:PROPOSED]
        search(judge, [*plans, *proposed], _ENDLESS, seed=cell.seed)
    return Run(
        cell=cell, planned=planned, found=tuple(min(seconds, planned) for seconds in judge.found)
    )


@lru_cache(maxsize=4)
def planned_for(number: int) -> tuple[list[Candidate], float]:
    """Return what planners find for a held-out problem, and seconds of the fastest of it."""
    problem, space = held_out_problem(number), Space(Method())
    plans = starts_of(space, baseline_plans(problem, space))
    return plans, min(map(Judge(problem, space).exactly, plans))


def _proposer(
    cell: Cell, problem: PlanningProblem, plans: list[Candidate], expert: Path
) -> Callable[[], list[Candidate]]:
    if cell.arm is Arm.NOTHING:
        return list
    if cell.arm is Arm.EVOLUTION:
        draw = Random(cell.seed)
        return lambda: bred(plans, problem, SAMPLES, draw)
    network = network_of(PRETRAINED if cell.arm is Arm.PRETRAINED else expert)
    return lambda: sampled(network, problem, SAMPLES)
