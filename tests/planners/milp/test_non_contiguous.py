"""The best assignment against all assignments, and against published instances."""

from __future__ import annotations

from dataclasses import replace

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.analytic_model import predict
from drlpp.costs.memory import MemoryModel
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.milp.non_contiguous import is_runnable, non_contiguous
from drlpp.planners.milp.partitioning_instance import PartitioningInstance
from drlpp.planners.problem.objective import AnalyticObjective
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.specs.cluster import Cluster, Link, local_cluster
from tests.support.planning.brute_force import every_assignment
from tests.support.planning.public_data import INSTANCES
from tests.support.strategies.problems import problems

# HiGHS keeps constraints to 1e-6 of their units.
ROUNDING = 1e-5


def best_assignment(problem: PlanningProblem) -> float:
    everyone = every_assignment(problem.workload, problem.cluster.accelerators)
    return min(map(AnalyticObjective(problem), everyone))


@st.composite
def exact_problems(draw: st.DrawFn) -> PlanningProblem:
    """Those whose optimum the program knows: equal links, no activations kept.

    And no updates or limits of memory where operators share weights.
    """
    problem = draw(problems(max_operators=5, max_accelerators=3, overheads=False))
    cluster, update_seconds = problem.cluster, problem.workload.update_seconds
    free: dict[str, object] = {"network": None}
    if problem.workload.ties:
        update_seconds, free["memory_bytes"] = numpy.zeros_like(update_seconds), None
    hosts = tuple(host.model_copy(update=free) for host in cluster.hosts)
    equal = {"hosts": hosts, "between_hosts": cluster.within_host}
    return replace(
        problem,
        workload=replace(
            problem.workload,
            kept_bytes=numpy.zeros_like(problem.workload.kept_bytes),
            update_seconds=update_seconds,
            working_bytes=None,
        ),
        cluster=cluster.model_copy(update=equal),
        replicate=False,
        memory=MemoryModel(weight_copies=1),
    )


@given(problem=exact_problems())
@settings(max_examples=30)
def test_it_is_the_best_of_all_assignments(problem: PlanningProblem) -> None:
    objective = AnalyticObjective(problem)
    best = best_assignment(problem)
    if not objective.fits(best):
        with pytest.raises(InvalidInput, match="no assignment of operators keeps the limits"):
            non_contiguous(problem)
        return
    solution = non_contiguous(problem, relative_gap=0.0)
    found, workload = objective(solution.placement), problem.workload
    several = [len(transfer.members) > 2 for transfer in workload.transfers]
    several += [len(tie.operators) > 2 for tie in workload.ties]
    if problem.costs == "overlapped" and any(several):
        # The rule counts what is sent to each reader, the program a tensor once.
        assert solution.lower_bound <= best * (1 + ROUNDING)
        assert found >= best * (1 - ROUNDING)
        return
    assert found == pytest.approx(best, rel=ROUNDING)
    assert solution.lower_bound == pytest.approx(best, rel=ROUNDING)


@given(problem=problems(max_operators=4, max_accelerators=3))
@settings(max_examples=15)
def test_its_bound_holds_on_all_links_and_with_all_memories(problem: PlanningProblem) -> None:
    problem = replace(problem, replicate=False)
    objective = AnalyticObjective(problem)
    best = best_assignment(problem)
    if not objective.fits(best):
        return
    solution = non_contiguous(problem)
    assert solution.lower_bound <= best * (1 + ROUNDING)
    assert objective(solution.placement) >= best * (1 - ROUNDING)
    if solution.proven_optimal:
        assert objective(solution.placement) <= best * (1 + 2e-3)


def test_a_stage_may_depend_on_itself_through_another() -> None:
    # 0 → 1 → 2 with seconds 2, 3, 1: together, 0 and 2 are as long as 1.
    column = numpy.zeros(3)
    workload = Workload(
        model="sandwich",
        names=("a", "b", "c"),
        forward_seconds=numpy.array([2.0, 3.0, 1.0]),
        backward_seconds=column,
        update_seconds=column,
        parameter_bytes=column,
        kept_bytes=column,
        edges=((0, 1), (1, 2)),
        transfers=(Transfer((0, 1), 0.1, 0.1), Transfer((1, 2), 0.1, 0.1)),
    )
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1.0))
    solution = non_contiguous(PlanningProblem(workload, cluster, replicate=False))
    assert {stage.operators for stage in solution.placement.stages} == {(0, 2), (1,)}
    assert solution.lower_bound == pytest.approx(3.0)
    assert solution.proven_optimal
    assert not is_runnable(workload, solution.placement)
    assert "not a placement that a pipeline can run" in solution.note


def test_stages_are_in_an_order_that_can_run_if_there_is_one() -> None:
    # The larger operator stands behind the smaller one.
    column = numpy.zeros(2)
    workload = Workload(
        model="pair",
        names=("a", "b"),
        forward_seconds=numpy.array([1.0, 2.0]),
        backward_seconds=column,
        update_seconds=column,
        parameter_bytes=column,
        kept_bytes=column,
        edges=((0, 1),),
        transfers=(Transfer((0, 1), 1.0, 1.0), Transfer((1, 2), 1.0, 1.0)),
    )
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1.0))
    solution = non_contiguous(PlanningProblem(workload, cluster, replicate=False))
    assert [stage.operators for stage in solution.placement.stages] == [(0,), (1,)]
    assert is_runnable(workload, solution.placement)


def test_runnable_is_what_no_edge_leads_back_in() -> None:
    first, second = (
        Stage(operators=(0,), accelerators=(0,)),
        Stage(operators=(1,), accelerators=(1,)),
    )
    workload, _ = _pair()
    assert is_runnable(workload, Placement(stages=(first, second)))
    assert not is_runnable(workload, Placement(stages=(second, first)))


def _pair() -> tuple[Workload, Cluster]:
    column = numpy.ones(2)
    workload = Workload("pair", ("a", "b"), column, column, column, column, column, ((0, 1),), ())
    return workload, local_cluster(2, Link(bandwidth_bytes_per_second=1.0))


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        pytest.param("bert24_training", 39.7895, marks=pytest.mark.slow),
        pytest.param("bert_l-3_training", 54.2075, marks=pytest.mark.slow),
    ],
)
def test_published_instances(name: str, milliseconds: float) -> None:
    problem = PartitioningInstance.read(INSTANCES / f"{name}.json").problem()
    solution = non_contiguous(problem, relative_gap=1e-4)
    prediction = predict(
        problem.workload, problem.cluster, solution.placement, problem.costs, problem.memory
    )
    assert prediction.missing_bytes == 0
    assert prediction.seconds_per_minibatch * 1000 == pytest.approx(milliseconds, rel=2e-4)
    assert solution.lower_bound * 1000 == pytest.approx(milliseconds, rel=2e-4)
    assert solution.proven_optimal
    assert not is_runnable(problem.workload, solution.placement)
