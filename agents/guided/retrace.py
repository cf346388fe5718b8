"""From a placement back to a walk of Algorithm 1 that makes it, so that it can be imitated."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from random import Random

from drlpp.agents.paper.trajectory import Trajectory
from drlpp.agents.paper.walk import CUT, Walk
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.walk_record import RecordingWalk
from drlpp.errors import InvalidPlacement


def retrace(
    context: PlacementContext,
    partitions: int,
    stage_of_operator: Sequence[int],
    stage_of_accelerator: Sequence[int],
    draw: Random,
) -> Trajectory:
    """Draw a walk that ends in a given placement; every valid placement has one.

    At every choice, one of the candidates of the stage in the making is drawn; what it depends on
    is of this stage or of earlier ones. When the stage is whole, it is cut. No policy has made
    these choices, so their log-probabilities are not numbers: they are to be taken from
    ``evaluate`` where they are needed.

    Args:
        context: the model and the cluster.
        partitions: K, the largest number of partitions.
        stage_of_operator: 0, 1, … without gaps.
        stage_of_accelerator: every accelerator holds a stage; how an idle one gets its stage is
            :func:`~drlpp.agents.guided.idle.assign_idle_accelerators`'s matter.
        draw: of the choices.

    Raises:
        InvalidPlacement: if an operator stands before one that it depends on, or a stage has no
            operators or no accelerator, or if there are more than ``partitions``.
    """
    _check(context, partitions, stage_of_operator, stage_of_accelerator)
    left = Counter(stage_of_operator)
    walk = (
        Walk(context, partitions) if context.costs is None else RecordingWalk(context, partitions)
    )
    while not walk.finished:
        if not walk.begins and not left[walk.cuts]:
            walk.take(CUT, math.nan)
            continue
        candidates = walk.candidates
        inside = [i for i, op in enumerate(candidates) if stage_of_operator[op] == walk.cuts]
        left[walk.cuts] -= len(walk.take(draw.choice(inside), math.nan))
    return Trajectory(
        walk=walk.result(),
        stage_of_accelerator=tuple(stage_of_accelerator),
        log_probs=(math.nan,) * len(stage_of_accelerator),
    )


def _check(
    context: PlacementContext,
    partitions: int,
    stage_of_operator: Sequence[int],
    stage_of_accelerator: Sequence[int],
) -> None:
    if (len(stage_of_operator), len(stage_of_accelerator)) != (len(context), context.accelerators):
        raise InvalidPlacement(
            f"stages of {len(stage_of_operator)} operators and {len(stage_of_accelerator)} "
            f"accelerators given; there are {len(context)} and {context.accelerators}"
        )
    stages = set(range(max(stage_of_operator) + 1))
    for what, found in (("operators", stage_of_operator), ("accelerators", stage_of_accelerator)):
        if set(found) != stages:
            raise InvalidPlacement(
                f"the {what} hold the stages {sorted(set(found))}; every one of 0 to "
                f"{len(stages) - 1} must have some, and no other"
            )
    if len(stages) > partitions:
        raise InvalidPlacement(f"{len(stages)} stages given; there can be {partitions}")
    for operator, read in enumerate(context.predecessors):
        for source in read:
            if stage_of_operator[source] > stage_of_operator[operator]:
                raise InvalidPlacement(
                    f"operator {operator} is in stage {stage_of_operator[operator]}, before "
                    f"operator {source} that it depends on, in stage {stage_of_operator[source]}"
                )
