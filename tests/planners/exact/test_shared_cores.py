"""Planners know that workers share cores: against exhaustive search, and against the simulator."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS
from drlpp.planners.exact.exact import exact
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
from tests.support.planning.brute_force import check_against_optimum, optimum
from tests.support.strategies.graphs import chain_of
from tests.support.strategies.problems import check_placement, workloads

FAST = Link(bandwidth_bytes_per_second=1e9)
links = st.builds(
    Link,
    bandwidth_bytes_per_second=st.sampled_from([0.5, 4.0]),
    latency_seconds=st.sampled_from([0.0, 0.25]),
)


def chain(overhead: float = 0.0) -> Workload:
    """Eight operators of 1 s each, 0.5 s of them backward; a stage may cost something besides."""
    _, profile = chain_of(seconds=[1.0] * 8, parameter_bytes=[1] * 8, output_bytes=[1] * 8)
    return replace(Workload.of(profile), forward_overhead_seconds=overhead)


def straight(stages: int) -> Placement:
    return Placement.from_assignment([stages * i // 8 for i in range(8)], list(range(stages)))


def test_workers_that_share_cores_take_what_they_compute_together() -> None:
    problem = PlanningProblem(chain(overhead=0.5), local_cluster(4, FAST, cores=2))
    prediction = problem.predict(straight(4))
    (cores,) = prediction.cores
    assert (cores.host, cores.cores, cores.workers) == ("localhost", 2, 4)
    assert prediction.seconds_per_minibatch == pytest.approx((8 + 4 * 0.5) / 2)
    assert prediction.bottleneck == "cores of localhost"
    as_many = problem.predict(straight(2))
    assert as_many.cores == ()
    assert as_many.seconds_per_minibatch == pytest.approx(4.5)


def test_faster_accelerators_need_less_of_the_cores() -> None:
    cluster = local_cluster(2, FAST, speeds=[1.0, 4.0], cores=1)
    prediction = PlanningProblem(chain(), cluster).predict(straight(2))
    assert prediction.seconds_per_minibatch == pytest.approx(4 + 4 / 4)


def test_the_exact_planner_leaves_workers_idle_that_would_be_in_each_others_way() -> None:
    """Four stages cost twice as much besides their operators as two, and have no more cores."""
    workload = chain(overhead=0.5)
    solution = exact(PlanningProblem(workload, local_cluster(4, FAST, cores=2)))
    assert solution.proven_optimal
    assert solution.placement.configuration in {"1-1", "2"}
    free = exact(PlanningProblem(workload, local_cluster(4, FAST)))
    assert len(free.placement.accelerators) == 4
    ample = exact(PlanningProblem(workload, local_cluster(4, FAST, cores=4)))
    assert ample == free


@given(
    workload=workloads(max_operators=5),
    speeds=st.lists(st.sampled_from([0.5, 1.0]), min_size=2, max_size=3),
    cores=st.integers(1, 2),
    link=links,
    replicate=st.booleans(),
    costs=st.sampled_from(["overlapped", "serial"]),
)
@settings(max_examples=50)
def test_it_is_the_optimum_of_all_placements_on_fewer_cores(
    workload: Workload,
    speeds: list[float],
    cores: int,
    link: Link,
    replicate: bool,
    costs: str,
) -> None:
    cluster = local_cluster(len(speeds), link, speeds, cores=cores)
    problem = PlanningProblem(workload, cluster, costs, replicate)  # type: ignore[arg-type]
    solution = exact(problem)
    check_placement(problem, solution.placement)
    check_against_optimum(problem, solution)


@given(
    seconds=st.lists(st.integers(0, 9), min_size=2, max_size=5),
    data=st.data(),
    limits=st.lists(st.sampled_from([20.0, 60.0]), min_size=2, max_size=3),
)
@settings(max_examples=30)
def test_memory_limits_are_kept_with_fewer_cores(
    seconds: list[int], data: st.DataObject, limits: list[float]
) -> None:
    sizes = st.lists(st.integers(0, 9), min_size=len(seconds), max_size=len(seconds))
    _, profile = chain_of(
        seconds=seconds, parameter_bytes=data.draw(sizes), output_bytes=data.draw(sizes)
    )
    lines = tuple(
        Host(name="host", accelerators=1, memory_bytes=limit, cores=1) for limit in limits
    )
    cluster = Cluster(hosts=lines, within_host=Link(bandwidth_bytes_per_second=2.0))
    memory = MemoryModel(weight_copies=3, stashes=data.draw(st.booleans()))
    problem = PlanningProblem(Workload.of(profile), cluster, memory=memory)
    try:
        best = optimum(problem)
    except ValueError:
        return
    prediction = problem.predict(exact(problem).placement)
    assert not prediction.missing_bytes
    assert prediction.seconds_per_minibatch == pytest.approx(best)


@given(workload=workloads(max_operators=5), cores=st.integers(1, 2), link=links)
@settings(max_examples=20)
def test_on_several_hosts_with_fewer_cores_the_bound_holds(
    workload: Workload, cores: int, link: Link
) -> None:
    hosts = (Host(name="one", accelerators=2, cores=cores), Host(name="two", accelerators=1))
    cluster = Cluster(hosts=hosts, within_host=link, between_hosts=link)
    problem = PlanningProblem(workload, cluster)
    solution = exact(problem)
    best = optimum(problem)
    found = problem.predict(solution.placement).seconds_per_minibatch
    assert solution.lower_bound <= best * (1 + 1e-9) <= found * (1 + 1e-8)
    if solution.proven_optimal:
        assert found == pytest.approx(best)


def test_stages_on_several_hosts_stand_on_different_cores() -> None:
    """Two stages for two cores, each of a host of its own."""
    host = Host(name="host", count=2, accelerators=3, cores=1)
    cluster = Cluster(hosts=(host,), within_host=FAST, between_hosts=FAST)
    solution = exact(PlanningProblem(chain(overhead=0.5), cluster, replicate=False))
    assert [stage.accelerators for stage in solution.placement.stages] == [(0,), (3,)]
    assert solution.proven_optimal


@pytest.mark.parametrize("cores", [1, 2, 3])
@pytest.mark.parametrize("stages", [1, 2, 3, 4])
def test_the_simulator_takes_no_less_than_the_rule(stages: int, cores: int) -> None:
    problem = PlanningProblem(chain(overhead=0.25), local_cluster(4, FAST, cores=cores))
    placement = straight(stages)
    rule = problem.predict(placement).seconds_per_minibatch
    played = simulate(problem.workload, problem.cluster, placement, Method(policy="vanilla"), 60)
    # A window begins and ends in the middle of passes.
    assert played.seconds_per_minibatch >= rule * 0.98
    if stages > cores:
        assert played.seconds_per_minibatch <= rule * 1.02, "all cores are busy all the time"


@pytest.mark.parametrize("planner", ["exact", "evolution"])
def test_what_planners_find_with_cores_is_faster_in_the_simulator(planner: str) -> None:
    workload = replace(chain(overhead=0.5), sharing_seconds_per_byte=1.0)
    cluster = local_cluster(4, FAST, cores=2)
    knowing, unknowing = (
        PLANNERS[planner](PlanningProblem(workload, known)).placement
        for known in (cluster, local_cluster(4, FAST))
    )

    def played(placement: Placement) -> float:
        return simulate(workload, cluster, placement, minibatches=60).seconds_per_minibatch

    assert len(unknowing.accelerators) == 4
    assert played(knowing) < 0.95 * played(unknowing)
