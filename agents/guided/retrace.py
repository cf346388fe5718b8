"""From a placement back to a walk of Algorithm 1 that makes it, so that it can be imitated."""

from __future__ import annotations

import math
from collections import Counter
from random import Random

from drlpp.agents.paper.rollout import Trajectory
from drlpp.agents.paper.walk import CUT
from drlpp.agents.transfer.context import PlacementContext
from drlpp.agents.transfer.priced_walk import PricingWalk
from drlpp.placement.placement import Placement
from drlpp.planners.problem import Objective


def retrace(context: PlacementContext, placement: Placement, draw: Random) -> Trajectory:
    """Draw a walk that ends in a given placement; every valid placement has one.

    At every choice, one of the candidates of the stage in the making is drawn; what it depends on
    is of this stage or of earlier ones. When the stage is whole, it is cut. No policy has made
    these choices, so their log-probabilities are not numbers.

    Args:
        context: the model and the cluster.
        placement: a valid one, without idle accelerators (:func:`assign_idle_accelerators`).
        draw: of the choices.
    """
    walk = PricingWalk(context)
    stage_of = placement.stage_of_operator(len(context))
    left = Counter(stage_of)
    while not walk.finished:
        if not walk.begins and not left[walk.cuts]:
            walk.take(CUT, math.nan)
            continue
        inside = [i for i, op in enumerate(walk.candidates) if stage_of[op] == walk.cuts]
        left[walk.cuts] -= len(walk.take(draw.choice(inside), math.nan))
    held = placement.stage_of_accelerator(context.accelerators)
    return Trajectory(walk.result(), held, (math.nan,) * len(held))


def assign_idle_accelerators(
    placement: Placement, accelerators: int, objective: Objective
) -> Placement:
    """Make idle accelerators further replicas of a placement, each where it hurts least.

    A policy has no choice that leaves an accelerator idle. Planners leave some idle where a further
    replica would cost more in all-reduces than it saves.

    Args:
        placement: on some of the accelerators.
        accelerators: A.
        objective: what is to stay small.
    """

    def joined(index: int, accelerator: int) -> Placement:
        stages = list(placement.stages)
        held = tuple(sorted((*stages[index].accelerators, accelerator)))
        stages[index] = stages[index].model_copy(update={"accelerators": held})
        return Placement(stages=tuple(stages))

    for idle in sorted(set(range(accelerators)) - set(placement.accelerators)):
        options = [joined(stage, idle) for stage in range(len(placement.stages))]
        placement = min(options, key=objective)
    return placement
