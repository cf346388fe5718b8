"""The fast form of the rule against the formulas of ``predict``."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.costs.analytic_model import predict
from drlpp.placement.placement import Placement
from drlpp.planners.problem.objective import AnalyticObjective
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.planners.search.folding import random_folded
from drlpp.planners.search.random_placements import random_placement
from tests.support.strategies.problems import problems


@given(
    problem=problems(max_operators=8, max_accelerators=6, hosts=3, divided=True),
    seed=st.integers(0, 9),
)
def test_it_is_what_predict_says(problem: PlanningProblem, seed: int) -> None:
    check(problem, random_placement(problem, random.Random(seed)))


@given(
    problem=problems(max_operators=9, max_accelerators=4, hosts=2, divided=True),
    seed=st.integers(0, 9),
)
def test_it_is_what_predict_says_of_two_stages_on_an_accelerator(
    problem: PlanningProblem, seed: int
) -> None:
    problem = replace(problem, workload=replace(problem.workload, flushes=True, stages_held=2))
    placement = random_folded(problem, random.Random(seed))
    if placement is not None:
        check(problem, placement)


def check(problem: PlanningProblem, placement: Placement) -> None:
    """Fails unless both forms of the rule say the same."""
    prediction = predict(
        problem.workload, problem.cluster, placement, problem.costs, problem.memory
    )
    objective = AnalyticObjective(problem)
    seconds, missing = objective.seconds_and_missing(placement)
    assert seconds == pytest.approx(prediction.seconds_per_minibatch)
    limits = [
        min(
            (problem.cluster.memory_bytes[a] or float("inf") for a in stage.accelerators),
        )
        for stage in prediction.stages
    ]
    # Of two stages that an accelerator holds, both say what it misses.
    apart = list(zip(prediction.stages, limits, strict=True))[: len(set(placement.accelerators))]
    assert missing == pytest.approx(
        sum(
            max(0.0, -stage.spare_bytes) / limit
            for stage, limit in (
                apart if placement.is_folded else zip(prediction.stages, limits, strict=True)
            )
            if stage.spare_bytes is not None
        )
    )
    assert objective.fits(objective(placement)) == (prediction.missing_bytes == 0)
