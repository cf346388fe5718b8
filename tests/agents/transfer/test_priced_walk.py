"""What a walk says of its partitions is what the rule says; every valid placement has a walk."""

from dataclasses import replace
from random import Random

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.agents.guided.retrace import assign_idle_accelerators, retrace
from drlpp.agents.paper.walk import CUT
from drlpp.agents.transfer.context import ContextBatch
from drlpp.agents.transfer.priced_walk import PricedWalk, PricingWalk
from drlpp.agents.transfer.relative_costs import ideals_by_replicas, replicas_needed, stage_ideals
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.costs.stage_cost import Group, StageSeconds
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem
from drlpp.planners.problem import AnalyticObjective
from drlpp.planners.search.moves import random_placement
from tests.support.planning.transfer_contexts import context_of, problem_of, problems

NETWORK = TransferNetwork()


def ideal_seconds(problem: PlanningProblem) -> float:
    return float(problem.workload.seconds.sum() / sum(problem.cluster.speeds))


def stage_by_stage(problem: PlanningProblem, placement: Placement) -> float:
    """Seconds by the rule of the slowest stage, each looked at by itself."""
    last = placement.stages[-1]
    return max(
        float(
            StageSeconds.of(
                problem.workload.stage(stage.operators, last=stage is last),
                Group.of(problem.cluster, stage.accelerators, ()),
            ).total()
        )
        for stage in placement.stages
    )


@settings(max_examples=40)
@given(problem=problems(), seed=st.integers(0, 9))
def test_finished_partitions_cost_what_the_rule_says(problem: PlanningProblem, seed: int) -> None:
    """Without replicas: the policy's weights were trained with sums that hide behind all work."""
    problem = replace(problem, replicate=False)
    draw = Random(seed)
    placement = random_placement(problem, draw)
    context = context_of(problem)
    walk = retrace(context, placement, draw).walk
    assert isinstance(walk, PricedWalk)
    costs = context.costs
    ideals = stage_ideals(
        numpy.array(walk.stage_sums),
        numpy.array([len(stage.accelerators) for stage in placement.stages]),
        numpy.array([costs.speeds[list(s.accelerators)].min() for s in placement.stages]),
        costs.scale,
    )
    an_ideal = problem.cluster.levels[0].bandwidth_bytes_per_second * ideal_seconds(problem)
    for sums, stage in zip(walk.stage_sums, placement.stages, strict=True):
        work = problem.workload.stage(stage.operators, last=stage is placement.stages[-1])
        messages = [work.incoming_bytes / an_ideal, work.outgoing_bytes / an_ideal]
        assert sums[2:] == pytest.approx(messages, rel=1e-9, abs=1e-9)
    found = ideals.max() * ideal_seconds(problem)
    assert found == pytest.approx(stage_by_stage(problem, placement), rel=1e-9)
    predicted = problem.predict(placement).seconds_per_minibatch
    assert found <= predicted * (1 + 1e-9)
    # The rule sends a tensor to every stage that reads it, a stage by itself knows it once.
    stage_of = [*walk.stage_of_operator, len(placement.stages) - 1]
    touched = [{stage_of[member] for member in t.members} for t in problem.workload.transfers]
    if max(map(len, touched), default=0) <= 2:
        assert found == pytest.approx(predicted, rel=1e-9)


@settings(max_examples=40)
@given(problem=problems(), data=st.data())
def test_an_outlook_comes_true_and_changes_nothing(
    problem: PlanningProblem, data: st.DataObject
) -> None:
    walk = PricingWalk(context_of(problem))
    while not walk.finished:
        outlook = walk.standing.outlook
        choice = data.draw(st.integers(0 if walk.begins else CUT, len(outlook) - 1))
        walk.take(choice, 0.0)
        expected = (0.0,) * 4 if choice == CUT else outlook[choice]
        assert walk.standing.sums == pytest.approx(expected)


def test_the_fewest_replicas_that_keep_a_target() -> None:
    # Work of 4 on m of speed 1 takes 4 / m, unless the weights' all-reduce takes longer.
    sums = numpy.array([[4.0, 0.0, 0.0, 0.0], [4.0, 6.0, 0.0, 0.0], [1.0, 0.0, 8.0, 2.0]])
    scale = numpy.zeros((3, 3))
    by_replicas = ideals_by_replicas(sums, scale, 4)
    assert by_replicas[0].tolist() == pytest.approx([4, 2, 4 / 3, 1])
    # 2 (m − 1) / m² · 6
    assert by_replicas[1].tolist() == pytest.approx([4, 3, 8 / 3, 2.25])
    assert by_replicas[2].tolist() == pytest.approx([8, 4, 8 / 3, 2])
    targets = numpy.array([[1.0, 2.0, 3.0]] * 3)
    needed = replicas_needed(by_replicas, targets, numpy.array([4, 4, 3]))
    assert needed.tolist() == [[4, 2, 2], [5, 5, 2], [4, 4, 3]]


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
