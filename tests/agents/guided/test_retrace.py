"""Every valid placement has a walk."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.agents.guided.retrace import assign_idle_accelerators, retrace
from drlpp.agents.transfer.context import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem
from drlpp.planners.problem import AnalyticObjective
from drlpp.planners.search.moves import random_placement
from tests.support.planning.transfer_contexts import context_of, problem_of, problems

NETWORK = TransferNetwork()


@settings(max_examples=40)
@given(problem=problems(), seed=st.integers(0, 9))
def test_random_placements_are_found_again(problem: PlanningProblem, seed: int) -> None:
    draw, accelerators = Random(seed), problem.cluster.accelerators
    objective = AnalyticObjective(problem)
    placement = assign_idle_accelerators(random_placement(problem, draw), accelerators, objective)
    context = context_of(problem)
    trajectory = retrace(context, placement, draw)
    found = trajectory.walk.stage_of_operator, trajectory.stage_of_accelerator
    assert Placement.from_assignment(*found) == placement.canonical
    evaluated = NETWORK.evaluate(
        ContextBatch.of([context]), [0], [trajectory.walk], [0], [trajectory]
    )
    assert evaluated.partitioner_log_probs.isfinite().all()
    assert evaluated.scheduler_log_probs.isfinite().all()


@pytest.mark.parametrize("cut", [1, 5])
def test_idle_accelerators_go_where_they_hurt_least(cut: int) -> None:
    problem = problem_of("chain", 6, accelerators=3, seed=2)
    objective = AnalyticObjective(problem)
    stages = [0] * cut + [1] * (6 - cut)
    placement = Placement.from_assignment(stages, (0, 2, 1))
    filled = assign_idle_accelerators(placement, 3, objective)
    options = [Placement.from_assignment(stages, (0, stage, 1)) for stage in (0, 1)]
    assert filled in options
    assert objective(filled) == min(map(objective, options))
    assert assign_idle_accelerators(filled, 3, objective) == filled
