"""PipeDream's planner against every pipeline it may choose from (``every_pipeline.py``)."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.planners.pipedream.branch_compression import chain_of_layers
from drlpp.planners.pipedream.levels import levels_of
from drlpp.planners.pipedream.pipedream import Variant, pipedream
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.planning.every_pipeline import Costs, every_pipeline, placement_of, preference
from tests.support.strategies.graphs import (
    chain_of,
    cluster_of,
    graph_of,
    graphs,
    profile_of,
    profiles,
)

VARIANTS: tuple[Variant, ...] = ("paper", "printed", "code")

# Counts of accelerators in a host, hosts in a rack, racks.
SHAPES = [(1, 1, 1), (2, 1, 1), (3, 1, 1), (4, 1, 1), (2, 2, 1), (3, 2, 1), (2, 3, 1), (2, 2, 2)]


def link(bandwidth: float) -> Link:
    return Link(bandwidth_bytes_per_second=bandwidth)


def cluster_like(
    shape: tuple[int, int, int], bandwidths: tuple[float, ...], memory: float | None = None
) -> Cluster:
    accelerators, hosts, racks = shape
    return Cluster(
        hosts=tuple(
            Host(
                name=f"rack{rack}",
                count=hosts,
                accelerators=accelerators,
                rack=str(rack),
                memory_bytes=memory,
            )
            for rack in range(racks)
        ),
        within_host=link(bandwidths[0]),
        between_hosts=link(bandwidths[1]),
        between_racks=link(bandwidths[2]),
    )


@st.composite
def workloads(draw: st.DrawFn, max_operators: int) -> Workload:
    graph = draw(graphs(max_operators=max_operators, chain=draw(st.booleans())))
    workload = Workload.of(draw(profiles(graph)))
    kept = draw(st.lists(st.integers(0, 9), min_size=len(graph), max_size=len(graph)))
    return replace(workload, kept_bytes=numpy.array(kept, dtype=float))


bandwidths = st.tuples(*[st.sampled_from([0.5, 2.0, 10.0])] * 3)


@pytest.mark.parametrize("variant", VARIANTS)
@given(
    data=st.data(), shape=st.sampled_from(SHAPES), bandwidths=bandwidths, replicate=st.booleans()
)
@settings(max_examples=25)
def test_the_optimum_of_its_formula(
    variant: Variant,
    data: st.DataObject,
    shape: tuple[int, int, int],
    bandwidths: tuple[float, ...],
    replicate: bool,
) -> None:
    workload = data.draw(workloads(6 if shape[1] == 1 else 4 if shape[2] == 1 else 3))
    cluster = cluster_like(shape, bandwidths)
    levels = levels_of(cluster)
    problem = PlanningProblem(workload, cluster, replicate=replicate)
    found = pipedream(problem, variant, cuts="chain")
    layers = chain_of_layers(workload)
    cost = getattr(Costs(workload, layers), variant)
    every = list(every_pipeline(levels, 0, len(layers), replicate))
    best = min(cost(pipeline, levels) for pipeline in every)
    assert found.own_seconds == pytest.approx(best)
    as_good = [pipeline for pipeline in every if cost(pipeline, levels) <= best * (1 + 1e-9)]
    assert found.placement == placement_of(min(as_good, key=preference), levels, layers)
    assert not found.proven_optimal
    assert f"({variant})" in found.note


@pytest.mark.parametrize("variant", VARIANTS)
@given(
    data=st.data(),
    shape=st.sampled_from([(2, 1, 1), (4, 1, 1), (2, 2, 1), (3, 2, 1)]),
    bandwidths=bandwidths,
    limit=st.integers(1, 120),
    memory=st.builds(
        MemoryModel,
        weight_copies=st.integers(1, 4),
        stashes=st.booleans(),
        recomputes=st.booleans(),
        in_flight_per_link=st.integers(0, 2),
    ),
)
@settings(max_examples=25)
def test_memory_is_a_constraint(
    variant: Variant,
    data: st.DataObject,
    shape: tuple[int, int, int],
    bandwidths: tuple[float, ...],
    limit: int,
    memory: MemoryModel,
) -> None:
    workload = data.draw(workloads(5 if shape[1] == 1 else 4))
    cluster = cluster_like(shape, bandwidths, limit)
    levels = levels_of(cluster)
    problem = PlanningProblem(workload, cluster, memory=memory)
    layers = chain_of_layers(workload)
    costs = Costs(workload, layers)
    needs = {}
    for pipeline in every_pipeline(levels, 0, len(layers), True):
        if variant == "code":
            needs[pipeline] = costs.code_copies(pipeline, levels)
        else:
            placement = placement_of(pipeline, levels, layers)
            needs[pipeline] = max(costs.stage_bytes(placement, memory))
    fitting = [pipeline for pipeline, needed in needs.items() if needed <= limit]
    cost = getattr(costs, variant)
    if fitting:
        found = pipedream(problem, variant, cuts="chain")
        best = min(cost(pipeline, levels) for pipeline in fitting)
        assert found.own_seconds == pytest.approx(best)
        placements = [
            placement_of(pipeline, levels, layers)
            for pipeline in fitting
            if cost(pipeline, levels) <= best * (1 + 1e-9)
        ]
        assert found.placement in placements
    else:
        with pytest.raises(NothingFits, match="bytes on each accelerator") as error:
            pipedream(problem, variant, cuts="chain")
        least = min(needs.values())
        numbers = re.search(r"needs (\d+) bytes .* (\d+) more than the (\d+)", str(error.value))
        assert numbers is not None
        assert [int(number) for number in numbers.groups()] == [least, least - limit, limit]


@pytest.mark.parametrize(("limit", "configuration"), [(41, "1-1-1-1"), (39, "2-1-1")])
def test_minibatches_in_flight_count_accelerators_of_later_hosts(
    limit: int, configuration: str
) -> None:
    """The first of four stages has 4 minibatches of 10 bytes in flight."""
    _, profile = chain_of(seconds=[4] * 4, parameter_bytes=[0, 9, 9, 9], output_bytes=[0] * 4)
    workload = replace(Workload.of(profile), kept_bytes=numpy.array([10.0, 1.0, 1.0, 1.0]))
    cluster = cluster_like((2, 2, 1), (1.0, 1.0, 1.0), limit)
    problem = PlanningProblem(workload, cluster, memory=MemoryModel(weight_copies=0))
    assert pipedream(problem).placement.configuration == configuration


def test_the_stage_that_does_not_fit_is_named() -> None:
    _, profile = chain_of(seconds=[1, 1, 1], parameter_bytes=[1, 90, 1], output_bytes=[1] * 3)
    cluster = cluster_like((2, 1, 1), (1.0, 1.0, 1.0), memory=200)
    problem = PlanningProblem(Workload.of(profile), cluster, memory=MemoryModel(weight_copies=4))
    with pytest.raises(
        NothingFits,
        match=r"operators 1 \(op1\) to 2 \(op2\) needs 368 bytes .* 168 more than the 200 that",
    ):
        pipedream(problem)


@given(data=st.data(), limit=st.integers(1, 60), accelerators=st.integers(1, 4))
def test_straight_pipelines_within_the_memory(
    data: st.DataObject, limit: int, accelerators: int
) -> None:
    workload = data.draw(workloads(5))
    cluster = cluster_like((accelerators, 1, 1), (2.0, 2.0, 2.0), limit)
    levels = levels_of(cluster)
    problem = PlanningProblem(workload, cluster, replicate=False)
    layers = chain_of_layers(workload)
    costs = Costs(workload, layers)
    fitting = [
        pipeline
        for pipeline in every_pipeline(levels, 0, len(layers), False)
        if max(costs.stage_bytes(placement_of(pipeline, levels, layers), problem.memory)) <= limit
    ]
    if fitting:
        best = min(costs.paper(pipeline, levels) for pipeline in fitting)
        assert pipedream(problem).own_seconds == pytest.approx(best)
    else:
        with pytest.raises(NothingFits):
            pipedream(problem)


@pytest.mark.parametrize("variant", VARIANTS)
@given(data=st.data(), shape=st.sampled_from(SHAPES), replicate=st.booleans())
def test_cuts_of_the_graph_give_valid_placements_no_worse(
    variant: Variant, data: st.DataObject, shape: tuple[int, int, int], replicate: bool
) -> None:
    graph = data.draw(graphs(max_operators=7))
    workload = Workload.of(data.draw(profiles(graph)))
    cluster = cluster_like(shape, (10.0, 2.0, 0.5))
    problem = PlanningProblem(workload, cluster, replicate=replicate)
    found = pipedream(problem, variant, cuts="graph")
    found.placement.validate_for(graph, cluster.accelerators)
    if replicate:
        assert len(found.placement.accelerators) == cluster.accelerators
    if variant != "code" and len(workload.order().edges) and not _has_other_sources(workload):
        chained = pipedream(problem, variant, cuts="chain")
        assert found.own_seconds is not None
        assert chained.own_seconds is not None
        assert found.own_seconds <= chained.own_seconds * (1 + 1e-9)


def _has_other_sources(workload: Workload) -> bool:
    return sum(not read for read in workload.predecessors) > 1


def test_replicates_what_computes_and_not_what_has_weights() -> None:
    """The shape of VGG-16: 15-1 in pipedream's table 1, here 3-1."""
    _, profile = chain_of(
        seconds=[3, 3, 3, 3], parameter_bytes=[1, 1, 1, 90], output_bytes=[8, 4, 1, 1]
    )
    problem = PlanningProblem(Workload.of(profile), cluster_of(4, bandwidth=10))
    placement = pipedream(problem).placement
    assert placement.configuration == "3-1"
    assert placement.stages[1].operators == (3,)


def test_variants_disagree_where_sum_and_maximum_do() -> None:
    _, profile = chain_of(seconds=[4, 4], parameter_bytes=[3, 3], output_bytes=[1, 1])
    problem = PlanningProblem(Workload.of(profile), cluster_of(2, bandwidth=2))
    assert pipedream(problem, "paper").placement.configuration == "2"
    assert pipedream(problem, "code").placement.configuration == "1-1"


def test_stages_stay_within_hosts() -> None:
    """Links between hosts are too slow for an all-reduce, so each host has half of the layers."""
    _, profile = chain_of(seconds=[4, 4], parameter_bytes=[5, 5], output_bytes=[1, 1])
    problem = PlanningProblem(Workload.of(profile), cluster_like((2, 2, 1), (1e9, 1.0, 1.0)))
    found = pipedream(problem)
    assert [stage.accelerators for stage in found.placement.stages] == [(0, 1), (2, 3)]
    assert found.own_seconds == pytest.approx(2)
    assert "2 × 2" in found.note


def test_a_straight_pipeline_leaves_accelerators_without_layers_alone() -> None:
    _, profile = chain_of(seconds=[4, 4], parameter_bytes=[0, 0], output_bytes=[1, 1])
    problem = PlanningProblem(Workload.of(profile), cluster_of(4, bandwidth=10), replicate=False)
    assert pipedream(problem).placement.accelerators == (0, 1)
    hosts = replace(problem, cluster=cluster_like((3, 3, 1), (0.1, 10.0, 10.0)))
    assert pipedream(hosts).placement.accelerators == (0, 3)


def test_a_straight_pipeline_may_have_fewer_stages() -> None:
    """Every cut costs more than all layers on one accelerator."""
    _, profile = chain_of(seconds=[1, 1], parameter_bytes=[0, 0], output_bytes=[9, 1])
    problem = PlanningProblem(Workload.of(profile), cluster_of(2, bandwidth=1), replicate=False)
    assert pipedream(problem).placement.configuration == "1"


@pytest.mark.parametrize(
    "hosts",
    [
        [Host(name="a", accelerators=3), Host(name="b", accelerators=1)],
        [Host(name="a", accelerators=2), Host(name="b", accelerators=2, speed=0.5)],
        [Host(name="a", count=3, accelerators=1, rack="x"), Host(name="b", accelerators=1)],
        [
            Host(name="a", accelerators=1),
            Host(name="b", accelerators=2),
            Host(name="a", accelerators=1),
        ],
    ],
)
def test_irregular_clusters_are_one_level_of_the_slowest(hosts: list[Host]) -> None:
    cluster = Cluster(
        hosts=tuple(hosts),
        within_host=link(1e9),
        between_hosts=link(8.0),
        between_racks=link(8.0),
    )
    _, profile = chain_of(
        seconds=[3, 3, 3, 3], parameter_bytes=[1, 1, 1, 90], output_bytes=[8, 4, 1, 1]
    )
    found = pipedream(PlanningProblem(Workload.of(profile), cluster))
    same = pipedream(PlanningProblem(Workload.of(profile), cluster_of(4, bandwidth=8)))
    assert found.placement == same.placement
    slower = 1 / min(host.speed for host in hosts)
    assert found.own_seconds == pytest.approx(same.own_seconds * slower)


def test_the_levels_of_a_cluster() -> None:
    levels = levels_of(cluster_like((4, 2, 3), (3.0, 2.0, 1.0)))
    assert [(x.components, x.size, x.bandwidth) for x in levels] == [
        (4, 1, 3.0),
        (2, 4, 2.0),
        (3, 8, 1.0),
    ]
    levels = levels_of(cluster_like((1, 2, 1), (3.0, 2.0, 1.0)))
    assert [(x.components, x.size, x.bandwidth) for x in levels] == [(2, 1, 2.0)]
    levels = levels_of(cluster_like((4, 2, 3), (3.0, 2.0, 1.0)), flat=True)
    assert [(x.components, x.size, x.bandwidth) for x in levels] == [(24, 1, 1.0)]
    levels = levels_of(cluster_of(1, bandwidth=7.0))
    assert [(x.components, x.size, x.bandwidth) for x in levels] == [(1, 1, 7.0)]


def test_the_network_of_the_slowest_host_counts() -> None:
    slow = Host(name="b", accelerators=2, network=link(0.5))
    hosts = (Host(name="a", accelerators=2), slow)
    cluster = Cluster(hosts=hosts, within_host=link(9.0), between_hosts=link(3.0))
    assert [level.bandwidth for level in levels_of(cluster)] == [9.0, 0.5]


def test_graphs_with_too_many_cuts_are_refused() -> None:
    branches = 12
    graph = graph_of(
        [(0, b) for b in range(1, branches + 1)] + [(b, 13) for b in range(1, branches + 1)],
        parameter_bytes=[1] * 14,
        output_bytes=[1] * 14,
    )
    problem = PlanningProblem(Workload.of(profile_of(graph, [1] * 14)), cluster_of(2))
    with pytest.raises(InvalidInput, match="more than 1000 places"):
        pipedream(problem, cuts="graph")
    assert len(pipedream(problem).placement.stages) <= 2
