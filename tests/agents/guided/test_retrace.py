"""Every valid placement has a walk, and nothing else has."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.agents import PlacementContext, retrace
from drlpp.agents.guided.idle import assign_idle_accelerators
from drlpp.agents.transfer.context_batch import ContextBatch
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.errors import InvalidPlacement
from drlpp.placement.placement import Placement, Stage
from drlpp.planners import PlanningProblem
from drlpp.planners.problem import AnalyticObjective
from drlpp.planners.search.moves import random_placement
from tests.support.planning.fake_measurer import branching
from tests.support.planning.transfer_contexts import assignment, context_of, problem_of, problems

NETWORK = TransferNetwork()


@settings(max_examples=60)
@given(problem=problems(), seed=st.integers(0, 9))
def test_random_placements_are_found_again(problem: PlanningProblem, seed: int) -> None:
    draw = Random(seed)
    stages, held = assignment(problem, random_placement(problem, draw))
    context = context_of(problem)
    trajectory = retrace(context, problem.cluster.accelerators, stages, held, draw)
    assert trajectory.walk.stage_of_operator == stages
    assert trajectory.stage_of_accelerator == tuple(held)
    found = NETWORK.evaluate(ContextBatch.of([context]), [0], [trajectory.walk], [0], [trajectory])
    assert found.partitioner_log_probs.isfinite().all()
    assert found.scheduler_log_probs.isfinite().all()


@pytest.mark.parametrize(
    ("stages", "held", "message"),
    [
        ((0, 0, 0, 0, 0), (0, 0), "there are 6 and 2"),
        ((0, 0, 0, 0, 0, 2), (0, 1), "operators hold the stages"),
        ((0, 0, 0, 0, 0, 1), (0, 0), "accelerators hold the stages"),
        ((1, 0, 0, 0, 0, 1), (0, 1), "before operator 0"),
    ],
)
def test_what_is_no_placement_is_refused(
    stages: tuple[int, ...], held: tuple[int, ...], message: str
) -> None:
    context = PlacementContext.of_graph(branching(6), 2)
    with pytest.raises(InvalidPlacement, match=message):
        retrace(context, 2, stages, held, Random(0))


def test_idle_accelerators_go_where_they_hurt_least() -> None:
    problem = problem_of("chain", 6, accelerators=3)
    objective = AnalyticObjective(problem)
    placement = Placement(
        stages=(
            Stage(operators=(0, 1, 2), accelerators=(0,)),
            Stage(operators=(3, 4, 5), accelerators=(2,)),
        )
    )
    filled = assign_idle_accelerators(placement, 3, objective)
    options = [Placement.from_assignment((0, 0, 0, 1, 1, 1), (0, stage, 1)) for stage in (0, 1)]
    assert filled in options
    assert objective(filled) == min(map(objective, options))
    assert assign_idle_accelerators(filled, 3, objective) == filled
