"""Stage 1: imitate exact optima."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple, cast

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from drlpp.agents.guided.retrace import retrace
from drlpp.agents.paper.rollout import Trajectory
from drlpp.agents.paper.walk import CUT
from drlpp.agents.pretraining.problems import SolvedProblem
from drlpp.agents.transfer.context import ContextBatch
from drlpp.agents.transfer.priced_walk import PricedWalk
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.transfer_scheduler import Partitions


class ImitationLoss(NamedTuple):
    """What imitation minimises: the sum of its parts.

    Attributes:
        partitioner: minus the logarithm of the probability of a right choice, in the mean.
        scheduler: the same for accelerators.
        estimator: the squared error of the logarithm of the guessed optimum.
    """

    partitioner: Tensor
    scheduler: Tensor
    estimator: Tensor

    @property
    def total(self) -> Tensor:
        """Their sum."""
        return self.partitioner + self.scheduler + self.estimator


def imitation_loss(
    network: TransferNetwork, problems: Sequence[SolvedProblem], draw: Random
) -> ImitationLoss:
    """Compute how far the network is from the optima of ``problems``.

    A random walk to each optimum is scored.

    Many choices are as good: every candidate of the stage in the making, and every stage that still
    waits for an accelerator as fast as the one that chooses. So it is their probability together
    that is to grow.
    """
    batch = ContextBatch.of([solved.context for solved in problems])
    guess = network.estimator(batch).optima
    optima = torch.tensor([solved.optimum_ideals for solved in problems]).log()
    encoded = network.encode(batch)
    indices = list(range(len(problems)))
    trajectories = [_optimal(solved, draw) for solved in problems]
    walks = [cast(PricedWalk, trajectory.walk) for trajectory in trajectories]
    logits, _ = network.partitioner.logits(encoded, indices, walks)
    right = torch.from_numpy(_right_choices(walks, logits.shape[1]))
    partitions = Partitions.of(encoded, indices, walks)
    scores, _ = network.scheduler.scores(
        encoded, partitions, [t.stage_of_accelerator for t in trajectories]
    )
    stages = torch.from_numpy(_right_stages(problems, trajectories, scores.shape[1:]))
    several = scores.isfinite().sum(dim=2) > 1
    return ImitationLoss(
        partitioner=-_probability(logits, right).mean(),
        scheduler=-_probability(scores[several], stages[several]).mean(),
        estimator=(guess - optima).square().mean(),
    )


def _optimal(solved: SolvedProblem, draw: Random) -> Trajectory:
    """Draw a walk to the optimum, equal accelerators in random places."""
    speeds = solved.context.costs.speeds
    places = list(range(len(speeds)))
    for speed in set(speeds.tolist()):
        equal = [a for a in range(len(speeds)) if speeds[a] == speed]
        for place, accelerator in zip(equal, draw.sample(equal, len(equal)), strict=True):
            places[accelerator] = place
    return retrace(solved.context, solved.imitated.on(places), draw)


def _right_choices(walks: Sequence[PricedWalk], width: int) -> NDArray[numpy.bool_]:
    """Return the choices that stay with the walks' partitions, ``(D, width)``.

    Column 0 is the cut.
    """
    right = numpy.zeros((sum(len(walk.standings) for walk in walks), width), dtype=bool)
    made = [(w, at, c) for w in walks for at, c in zip(w.standings, w.chosen, strict=True)]
    for row, (walk, standing, chosen) in enumerate(made):
        if chosen == CUT:
            right[row, 0] = True
        else:
            stages = [walk.stage_of_operator[operator] for operator in standing.candidates]
            right[row, 1 : 1 + len(stages)] = numpy.array(stages) == standing.cuts
    return right


def _right_stages(
    problems: Sequence[SolvedProblem], trajectories: Sequence[Trajectory], shape: Sequence[int]
) -> NDArray[numpy.bool_]:
    """Return the stages that every accelerator may take instead of an equal one, ``(P, A, K)``."""
    right = numpy.zeros((len(problems), *shape), dtype=bool)
    right[:, :, 0] = True
    for row, (solved, trajectory) in enumerate(zip(problems, trajectories, strict=True)):
        speeds, order = solved.context.costs.speeds, solved.context.accelerator_order
        for turn, accelerator in enumerate(order):
            right[row, accelerator] = False
            for later in order[turn:]:
                if speeds[later] == speeds[accelerator]:
                    right[row, accelerator, trajectory.stage_of_accelerator[later]] = True
    return right


def _probability(scores: Tensor, right: Tensor) -> Tensor:
    """Return the logarithm of the probability of all that is right together, by row."""
    return scores.masked_fill(~right, -torch.inf).logsumexp(dim=1) - scores.logsumexp(dim=1)
