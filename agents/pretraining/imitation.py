"""Stage 1: imitate exact optima."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from drlpp.agents.guided.retrace import retrace
from drlpp.agents.paper.trajectory import Trajectory
from drlpp.agents.paper.walk import CUT
from drlpp.agents.pretraining.problems import SolvedProblem
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.agents.transfer.transfer_scheduler import Partitions
from drlpp.agents.transfer.walk_record import RecordedWalk, recorded


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
    walks = [
        recorded(solved.context, trajectory.walk)
        for solved, trajectory in zip(problems, trajectories, strict=True)
    ]
    logits, _ = network.partitioner.logits(encoded, indices, walks)
    right = torch.from_numpy(right_choices(walks, logits.shape[1]))
    scores, _ = network.scheduler.scores(
        encoded,
        Partitions.of(encoded, indices, walks),
        [trajectory.stage_of_accelerator for trajectory in trajectories],
    )
    stages = torch.from_numpy(right_stages(problems, trajectories, scores.shape[1:]))
    several = scores.isfinite().sum(dim=2) > 1
    return ImitationLoss(
        partitioner=-_probability(logits, right).mean(),
        scheduler=-_probability(scores[several], stages[several]).mean(),
        estimator=(guess - optima).square().mean(),
    )


def _optimal(solved: SolvedProblem, draw: Random) -> Trajectory:
    """Draw a walk to the optimum, equal accelerators in random places."""
    placement, accelerators = solved.imitated, solved.context.accelerators
    costs = solved.context.costs
    assert costs is not None
    stage_of = [0] * accelerators
    for index, stage in enumerate(placement.stages):
        for accelerator in stage.accelerators:
            stage_of[accelerator] = index
    for speed in set(costs.speeds.tolist()):
        equal = [a for a in range(accelerators) if costs.speeds[a] == speed]
        shuffled = draw.sample(equal, len(equal))
        stages = [stage_of[a] for a in shuffled]
        for accelerator, index in zip(equal, stages, strict=True):
            stage_of[accelerator] = index
    stage_of_operator = placement.stage_of_operator(len(solved.context))
    return retrace(solved.context, accelerators, stage_of_operator, stage_of, draw)


def right_choices(walks: Sequence[RecordedWalk], width: int) -> NDArray[numpy.bool_]:
    """Return the choices that stay with the walks' partitions, ``(D, width)``.

    Column 0 is the cut.
    """
    rows = []
    for walk in walks:
        record = walk.record
        stage_of = numpy.array(walk.stage_of_operator)
        right = numpy.zeros((len(record.choice), width), dtype=bool)
        right[:, 0] = record.choice == CUT
        row = numpy.repeat(numpy.arange(len(record.choice)), record.counts)
        first = numpy.cumsum(record.counts) - record.counts
        column = numpy.arange(len(row)) - first[row] + 1
        right[row, column] = (stage_of[record.candidates] == record.cuts[row]) & ~right[row, 0]
        rows.append(right)
    return numpy.concatenate(rows)


def right_stages(
    problems: Sequence[SolvedProblem], trajectories: Sequence[Trajectory], shape: Sequence[int]
) -> NDArray[numpy.bool_]:
    """Return the stages that every accelerator may take instead of an equal one, ``(P, A, K)``."""
    right = numpy.zeros((len(problems), *shape), dtype=bool)
    right[:, :, 0] = True
    for row, (solved, trajectory) in enumerate(zip(problems, trajectories, strict=True)):
        costs, order = solved.context.costs, solved.context.accelerator_order
        assert costs is not None
        for turn, accelerator in enumerate(order):
            right[row, accelerator] = False
            for later in order[turn:]:
                if costs.speeds[later] == costs.speeds[accelerator]:
                    right[row, accelerator, trajectory.stage_of_accelerator[later]] = True
    return right


def _probability(scores: Tensor, right: Tensor) -> Tensor:
    """Return the logarithm of the probability of all that is right together, by row."""
    return scores.masked_fill(~right, -torch.inf).logsumexp(dim=1) - scores.logsumexp(dim=1)
