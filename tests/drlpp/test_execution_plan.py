"""A plan is built once, and there is none of what cannot be run."""

import pytest
from random_graphs import graph_of

from drlpp.candidate import Candidate
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.execution_plan import ExecutionPlan
from drlpp.placement import Placement
from drlpp.training_options import Method
from drlpp.versions import stage_delays, weight_uses
from drlpp.window import Window

GRAPH = graph_of([(0, 1), (1, 2), (2, 3)], parameter_bytes=[1] * 4, output_bytes=[1] * 4)
OTHER = graph_of([(0, 1), (1, 2)], parameter_bytes=[1] * 3, output_bytes=[1] * 3)
HALVES = Placement.from_assignment([0, 0, 1, 1], [0, 1, 1])
METHOD = Method()
FLUSHING = Method(schedule="gpipe", policy="sync", microbatches=2)


def test_a_placement_with_two_methods_is_two_candidates() -> None:
    one, other = Candidate(HALVES, METHOD), Candidate(HALVES, FLUSHING)
    again = Candidate(HALVES.model_copy(), Method())
    assert one == again != other
    assert len({one, other, again}) == 2
    backwards = HALVES.model_copy(
        update={
            "stages": tuple(
                stage.model_copy(update={"operators": stage.operators[::-1]})
                for stage in HALVES.stages
            )
        }
    )
    assert Candidate(backwards, METHOD) != one
    assert Candidate(backwards, METHOD).canonical == one.canonical
    assert one.configuration == "1-2"


@pytest.mark.parametrize("method", [METHOD, FLUSHING, Method(policy="stash", accumulate=2)])
def test_a_plan_has_what_placement_and_method_say(method: Method) -> None:
    plan = ExecutionPlan.of(Candidate(HALVES, method), GRAPH, 3)
    pipeline = HALVES.pipeline(GRAPH)
    assert (plan.placement, plan.method, plan.pipeline) == (HALVES, method, pipeline)
    assert list(plan.delays) == stage_delays(pipeline, method)
    assert plan.in_flight == method.in_flight(pipeline)
    assert plan.window(7) == Window.plan(pipeline, 7, method)
    for minibatches in (8, 12, 8):
        schedule = method.schedule_for(pipeline, minibatches)
        assert plan.schedule(minibatches) == schedule
        assert plan.weight_uses(minibatches) == weight_uses(schedule, method)
    # What was asked for last is the same object.
    assert plan.schedule(8) is plan.schedule(8)
    assert plan.weight_uses(8) is plan.weight_uses(8)


def test_a_flushing_plan_of_the_same_placement() -> None:
    plan = ExecutionPlan.of(Candidate(HALVES, METHOD), GRAPH, 3)
    assert plan.synchronous.candidate == Candidate(HALVES, METHOD.synchronous(plan.pipeline))
    assert plan.synchronous.schedule(4) != plan.schedule(4)
    assert set(plan.synchronous.delays) == {0}


def test_there_is_no_plan_of_what_cannot_be_run() -> None:
    with pytest.raises(InvalidPlacement, match="there are only 0 to 1"):
        ExecutionPlan.of(Candidate(HALVES, METHOD), GRAPH, 2)
    with pytest.raises(InvalidPlacement, match="only 0 to 2"):
        ExecutionPlan.of(Candidate(HALVES, METHOD), OTHER, 3)
    asynchronous = Method(schedule="1f1b", policy="sync")
    with pytest.raises(InvalidInput, match="policy sync cannot run a 1-2 placement"):
        ExecutionPlan.of(Candidate(HALVES, asynchronous), GRAPH, 3)


def test_whatever_a_caller_has_is_taken_for_its_plan() -> None:
    plan = ExecutionPlan.taken(HALVES, GRAPH, 3, METHOD)
    assert plan == ExecutionPlan.taken(Candidate(HALVES, METHOD), GRAPH, 3, FLUSHING)
    assert ExecutionPlan.taken(plan, GRAPH, 3, FLUSHING) is plan
    with pytest.raises(InvalidInput, match="for 3 accelerators, but there are 4"):
        ExecutionPlan.taken(plan, GRAPH, 4, METHOD)
    with pytest.raises(InvalidInput, match="the plan is of made-up"):
        ExecutionPlan.taken(plan, OTHER, 3, METHOD)
    with pytest.raises(InvalidInput, match="no graph"):
        ExecutionPlan.taken(ExecutionPlan(plan.candidate, plan.pipeline), GRAPH, 3, METHOD)
