"""The exact planner against exhaustive search and the published optima."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.memory import MemoryModel
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.errors import NothingFits
from drlpp.planners import PLANNERS
from drlpp.planners.exact.exact import exact, tractability
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
from tests.support.in_turns import fast_are
from tests.support.planning.brute_force import check_against_optimum, optimum
from tests.support.planning.partitioning_instance import read_instance
from tests.support.planning.public_data import CONTIGUOUS_OPTIMA, INSTANCES
from tests.support.strategies.graphs import chain_of, cluster_of, graphs, profiles
from tests.support.strategies.problems import check_placement, problems, workloads


def without_limits(problem: PlanningProblem) -> PlanningProblem:
    hosts = tuple(host.model_copy(update={"memory_bytes": None}) for host in problem.cluster.hosts)
    cluster = Cluster(
        hosts=hosts,
        within_host=problem.cluster.within_host,
        between_hosts=problem.cluster.between_hosts,
    )
    return replace(problem, cluster=cluster)


@given(problem=problems(max_operators=5, max_accelerators=3, hosts=1, divided=True, free=True))
@settings(max_examples=50)
def test_it_is_the_optimum_of_all_placements(problem: PlanningProblem) -> None:
    problem = without_limits(problem)
    solution = exact(problem)
    check_placement(problem, solution.placement)
    check_against_optimum(problem, solution)


@given(
    workload=workloads(max_operators=5),
    speeds=st.lists(st.sampled_from([0.25, 0.5, 1.0]), min_size=2, max_size=3),
    bandwidth=st.sampled_from([0.5, 4.0]),
    replicate=st.booleans(),
)
@settings(max_examples=35)
def test_unequal_accelerators_are_handed_out_in_the_best_way(
    workload: Workload, speeds: list[float], bandwidth: float, replicate: bool
) -> None:
    link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=0.1)
    cluster = local_cluster(len(speeds), link, speeds)
    problem = PlanningProblem(workload, cluster, replicate=replicate)
    solution = exact(problem)
    check_placement(problem, solution.placement)
    check_against_optimum(problem, solution)


@given(
    seconds=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    data=st.data(),
    limits=st.lists(st.sampled_from([20.0, 60.0, 200.0]), min_size=1, max_size=3),
    stashes=st.booleans(),
)
@settings(max_examples=50)
def test_memory_limits_are_kept_on_chains(
    seconds: list[int], data: st.DataObject, limits: list[float], stashes: bool
) -> None:
    sizes = st.lists(st.integers(0, 9), min_size=len(seconds), max_size=len(seconds))
    _, profile = chain_of(
        seconds=seconds, parameter_bytes=data.draw(sizes), output_bytes=data.draw(sizes)
    )
    workload = Workload.of(profile)
    kept = numpy.array(data.draw(sizes), dtype=float)
    lines = tuple(
        Host(
            name="host",
            accelerators=1,
            memory_bytes=limit,
            speed=data.draw(st.sampled_from([1.0, 0.5])),
        )
        for limit in limits
    )
    cluster = Cluster(hosts=lines, within_host=Link(bandwidth_bytes_per_second=2.0))
    microbatches, accumulate = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    memory = MemoryModel(
        weight_copies=3, stashes=stashes, microbatches=microbatches, accumulate=accumulate
    )
    problem = PlanningProblem(replace(workload, kept_bytes=kept), cluster, memory=memory)
    try:
        best = optimum(problem)
    except ValueError:
        with pytest.raises(NothingFits, match="misses"):
            exact(problem)
        return
    solution = exact(problem)
    prediction = problem.predict(solution.placement)
    assert not prediction.missing_bytes
    assert prediction.seconds_per_minibatch == pytest.approx(best)


@pytest.mark.parametrize("alike", [True, False])
@pytest.mark.parametrize("per_link", [0, 1, 2])
def test_deeper_pipelines_need_more_memory(per_link: int, alike: bool) -> None:
    """A byte for each minibatch in flight: 1 + (1 + N) n of them with n accelerators behind."""
    _, profile = chain_of(seconds=[4, 4, 4], parameter_bytes=[0] * 3, output_bytes=[0] * 3)
    workload = replace(Workload.of(profile), kept_bytes=numpy.ones(3))
    memory = MemoryModel(weight_copies=1, in_flight_per_link=per_link)

    def planned(limit: float) -> str:
        hosts = tuple(
            Host(name="host", accelerators=1, memory_bytes=limit, speed=speed)
            for speed in (1.0, 1.0, 1.0 if alike else 1.01)
        )
        cluster = Cluster(hosts=hosts, within_host=Link(bandwidth_bytes_per_second=1e9))
        problem = PlanningProblem(workload, cluster, replicate=False, memory=memory)
        return exact(problem).placement.configuration

    straight = 1 + 2 * (1 + per_link)
    assert planned(straight) == "1-1-1"
    assert planned(straight - 1) == "1-1"


@given(problem=problems(max_operators=5, max_accelerators=3, hosts=2, divided=True, free=True))
@settings(max_examples=35)
def test_what_is_claimed_holds_for_any_cluster_and_memory(problem: PlanningProblem) -> None:
    try:
        best = optimum(problem)
    except ValueError:
        with pytest.raises(NothingFits, match="misses"):
            exact(problem)
        return
    try:
        solution = exact(problem)
    except NothingFits:
        # Branches need less memory than stages in a row; others may have missed them as well.
        return
    prediction = problem.predict(solution.placement)
    assert not prediction.missing_bytes
    assert solution.lower_bound <= best * (1 + 1e-9)
    if solution.proven_optimal:
        assert prediction.seconds_per_minibatch == pytest.approx(best)


def test_branches_may_fit_where_stages_in_a_row_do_not() -> None:
    """Two operators side by side, each of which fills an accelerator."""
    nothing = numpy.zeros(2)
    workload = Workload(
        model="beside",
        names=("a", "b"),
        forward_seconds=nothing + 1,
        backward_seconds=nothing,
        update_seconds=nothing,
        parameter_bytes=nothing,
        kept_bytes=nothing + 10,
        edges=(),
        transfers=(),
    )
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1.0), memory_bytes=10)
    solution = exact(PlanningProblem(workload, cluster))
    assert solution.placement.configuration == "1-1"


@pytest.mark.parametrize("count", fast_are([16], [16, 32]))
def test_many_kinds_of_accelerators_are_planned_without_proof(count: int) -> None:
    _, profile = chain_of(seconds=[1.0] * 12, parameter_bytes=[1] * 12, output_bytes=[1] * 12)
    speeds = [1 - number / 100 for number in range(count)]
    cluster = local_cluster(count, Link(bandwidth_bytes_per_second=100.0), speeds)
    problem = PlanningProblem(Workload.of(profile), cluster)
    solution = exact(problem)
    found = problem.predict(solution.placement).seconds_per_minibatch
    assert solution.lower_bound <= found < 12 / 10
    assert "too many kinds" in solution.note


def test_what_misses_the_limit_is_told_with_its_stage() -> None:
    _, profile = chain_of(seconds=[1, 1], parameter_bytes=[10, 100], output_bytes=[0, 0])
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1.0), memory_bytes=300)
    problem = PlanningProblem(Workload.of(profile), cluster, memory=MemoryModel(weight_copies=4))
    with pytest.raises(NothingFits, match=r"misses 100 bytes: its stage 1 .*op1 .*needs 400 bytes"):
        exact(problem)


@given(problem=problems(max_operators=5, max_accelerators=3, hosts=2, divided=True, free=True))
@settings(max_examples=20)
def test_on_several_hosts_the_bound_holds(problem: PlanningProblem) -> None:
    hosts = tuple(host.model_copy(update={"memory_bytes": None}) for host in problem.cluster.hosts)
    links = {
        "within_host": problem.cluster.within_host,
        "between_hosts": problem.cluster.between_hosts,
    }
    problem = replace(problem, cluster=Cluster(hosts=hosts, **links))
    solution = exact(problem)
    check_placement(problem, solution.placement)
    best = optimum(problem)
    found = problem.predict(solution.placement).seconds_per_minibatch
    assert solution.lower_bound <= best * (1 + 1e-9)
    assert found >= best * (1 - 1e-9)
    if solution.proven_optimal:
        assert found == pytest.approx(best)


@given(problem=problems(max_operators=6, max_accelerators=3, hosts=1, free=True))
@settings(max_examples=10)
def test_too_many_downsets_give_a_placement_and_a_bound(problem: PlanningProblem) -> None:
    problem = without_limits(problem)
    whole = exact(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(import_module("drlpp.planners.exact.exact"), "MOST_DOWNSETS", 3)
        partly = exact(problem)
    check_placement(problem, partly.placement)
    best = problem.predict(whole.placement).seconds_per_minibatch
    assert problem.predict(partly.placement).seconds_per_minibatch >= best * (1 - 1e-9)
    assert partly.lower_bound <= best * (1 + 1e-9)


def test_it_says_at_once_whether_a_graph_is_tractable() -> None:
    """Forty operators side by side have 2⁴⁰ downsets."""
    zeros = numpy.zeros(40)
    wide = Workload(
        model="wide",
        names=tuple(f"op{i}" for i in range(40)),
        forward_seconds=zeros + 1,
        backward_seconds=zeros,
        update_seconds=zeros,
        parameter_bytes=zeros,
        kept_bytes=zeros,
        edges=(),
        transfers=(),
    )
    found = tractability(wide)
    assert (found.downsets, found.tractable) == (2**40, False)
    solution = exact(PlanningProblem(wide, cluster_of(4)))
    assert solution.proven_optimal  # all work shared evenly is a bound that can be met
    assert solution.lower_bound == pytest.approx(10)


@given(data=st.data(), accelerators=st.integers(1, 4))
@settings(max_examples=10)
def test_the_same_problem_gives_the_same_plan(data: st.DataObject, accelerators: int) -> None:
    graph = data.draw(graphs())
    workload = Workload.of(data.draw(profiles(graph)))
    problem = PlanningProblem(workload, cluster_of(accelerators, 2.0))
    assert exact(problem) == exact(problem)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("hosts", [1, 3])
@given(data=st.data())
@settings(max_examples=3)
def test_no_other_planner_is_faster(hosts: int, data: st.DataObject) -> None:
    _check_no_other_is_faster(hosts, data)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("hosts", [1, 3])
@given(data=st.data())
@settings(max_examples=250)
def test_no_other_planner_is_faster_on_500_problems(hosts: int, data: st.DataObject) -> None:
    _check_no_other_is_faster(hosts, data)


def _check_no_other_is_faster(hosts: int, data: st.DataObject) -> None:
    """Neither by the rule, nor does one that minimises another formula find something faster."""
    problem = data.draw(problems(max_operators=10, max_accelerators=5, hosts=hosts))
    problem = without_limits(problem)
    best = problem.predict(exact(problem).placement).seconds_per_minibatch
    others = set(PLANNERS) - {"exact"}
    if not problem.replicate:
        others -= {"data-parallel"}
    for name in sorted(others):
        placement = PLANNERS[name](problem).placement
        check_placement(problem, placement)
        assert problem.predict(placement).seconds_per_minibatch >= best * (1 - 1e-9), name


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        pytest.param(*item, marks=pytest.mark.slow if item[0] == "bert_l-3_training" else ())
        for item in CONTIGUOUS_OPTIMA.items()
    ],
)
def test_published_contiguous_optima(name: str, milliseconds: float) -> None:
    problem = read_instance(INSTANCES / f"{name}.json")
    solution = exact(problem)
    check_placement(problem, solution.placement)
    found = problem.predict(solution.placement).seconds_per_minibatch
    assert round(1e3 * found, 4) == milliseconds
    assert solution.proven_optimal


@pytest.mark.parametrize("speeds", [[1.0, 1.0, 1.0], [1.0, 0.5, 0.25]])
def test_without_time_it_says_what_was_proven(speeds: list[float]) -> None:
    _, profile = chain_of(
        seconds=[6, 3, 5, 7, 2], parameter_bytes=[4] * 5, output_bytes=[1, 2, 3, 4, 5]
    )
    problem = PlanningProblem(Workload.of(profile), cluster_of(3).with_speeds(speeds))
    best = exact(problem)
    assert best.proven_optimal
    hasty = exact(replace(problem, time_limit_seconds=0.0))
    check_placement(problem, hasty.placement)
    assert "stopped after 0 s" in hasty.note
    assert 0 < hasty.lower_bound <= best.lower_bound * (1 + 1e-9)
    found = problem.predict(hasty.placement).seconds_per_minibatch
    assert found >= best.lower_bound * (1 - 1e-9)
    assert hasty.proven_optimal == (found <= hasty.lower_bound * (1 + 1e-9))


def test_the_order_of_operators_decides_what_a_stage_needs() -> None:
    """Operator 1 costs nothing and is planned with 3, but 2 computes in between, and in its order
    what 3 keeps is free again by its backward."""
    nothing = numpy.zeros(4)
    workload = Workload(
        model="made-up",
        names=("a", "view", "b", "c"),
        forward_seconds=numpy.array([10.0, 0.0, 5.0, 5.0]),
        backward_seconds=nothing,
        update_seconds=nothing,
        parameter_bytes=nothing,
        kept_bytes=numpy.array([0.0, 0.0, 0.0, 8.0]),
        working_bytes=numpy.array([0.0, 0.0, 8.0, 0.0, 0.0]),
        edges=((0, 2), (0, 3), (1, 3)),
        transfers=(Transfer((0, 2, 3), 0.0, 0.0), Transfer((1, 3), 0.0, 0.0)),
    )
    link = Link(bandwidth_bytes_per_second=100.0)
    problem = PlanningProblem(
        workload,
        local_cluster(2, link, memory_bytes=10.0),
        replicate=False,
        memory=MemoryModel(weight_copies=1),
    )
    solution = exact(problem)
    assert problem.predict(solution.placement).seconds_per_minibatch == 10
    assert solution.lower_bound == 10
