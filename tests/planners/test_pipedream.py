"""PipeDream's planner against every pipeline it may choose from, and what the paper reports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations, pairwise, permutations, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.papers.pipedream_profile import read_pipedream_profile
from drlpp.capturing.graph import OpGraph
from drlpp.costs.memory import MemoryModel
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.pipedream.cuts import States, chain_of_layers, chain_states, graph_states
from drlpp.planners.pipedream.pipedream import Level, levels_of, pipedream
from drlpp.planners.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.strategies import problems
from tests.support.strategies.graphs import (
    chain_of,
    cluster_of,
    graph_of,
    graphs,
    profile_of,
    profiles,
)

Layers = tuple[tuple[int, ...], ...]


class Share(NamedTuple):
    begin: int
    end: int
    replicas: int
    inner: Any


def every_pipeline(
    levels: tuple[Level, ...], begin: int, end: int, replicate: bool
) -> Iterator[tuple[Share, ...] | None]:
    """Every pipeline that PipeDream's planner may choose from.

    On a level it is a tuple of shares, each with a pipeline of the level below; on level 0 None.
    """
    if not levels:
        yield None
        return
    *below, level = levels
    for count in range(1, min(end - begin, level.components) + 1):
        for inner_cuts in combinations(range(begin + 1, end), count - 1):
            spans = list(pairwise((begin, *inner_cuts, end)))
            inner = [list(every_pipeline(tuple(below), *span, replicate)) for span in spans]
            for replicas in _replicas(level.components, count, replicate):
                for chosen in product(*inner):
                    yield tuple(
                        Share(*span, m, pipeline)
                        for span, m, pipeline in zip(spans, replicas, chosen, strict=True)
                    )


def _replicas(components: int, stages: int, replicate: bool) -> Iterator[tuple[int, ...]]:
    if not replicate:
        yield (1,) * stages
        return
    for ends in combinations(range(1, components), stages - 1):
        yield tuple(b - a for a, b in pairwise((0, *ends, components)))


def placement_of(
    pipeline: tuple[Share, ...], levels: tuple[Level, ...], layers: Layers
) -> Placement:
    return Placement(
        stages=tuple(
            Stage(
                operators=tuple(sorted(op for layer in layers[begin:end] for op in layer)),
                accelerators=tuple(accelerators),
            )
            for begin, end, accelerators in _flat(pipeline, levels)
        )
    )


def _flat(
    pipeline: tuple[Share, ...], levels: tuple[Level, ...]
) -> Iterator[tuple[int, int, list[int]]]:
    *below, level = levels
    used = 0
    for share in pipeline:
        components = range(used, used + share.replicas)
        used += share.replicas
        if share.inner is None:
            yield share.begin, share.end, list(components)
            continue
        for begin, end, accelerators in _flat(share.inner, tuple(below)):
            yield begin, end, [c * level.size + a for c in components for a in accelerators]


class Costs:
    """The formula of ``drlpp.planners.pipedream.pipedream``, for one pipeline."""

    def __init__(self, workload: Workload, layers: Layers) -> None:
        self.workload = workload
        self.layers = layers

    def seconds(self, begin: int, end: int) -> float:
        return sum(self.workload.seconds[op] for layer in self.layers[begin:end] for op in layer)

    def weights(self, begin: int, end: int) -> float:
        sizes = self.workload.parameter_bytes
        return sum(sizes[op] for layer in self.layers[begin:end] for op in layer)

    def cut(self, at: int) -> float:
        """Both ways, what somebody before layer ``at`` and somebody behind it have to do with."""
        before = {operator for layer in self.layers[:at] for operator in layer}
        if at == len(self.layers):
            return 0.0
        return sum(
            transfer.forward_bytes + transfer.backward_bytes
            for transfer in self.workload.transfers
            if before & set(transfer.members) and set(transfer.members) - before
        )

    def paper(self, pipeline: tuple[Share, ...], levels: tuple[Level, ...]) -> float:
        *below, level = levels
        parts = []
        for begin, end, m, inner in pipeline:
            seconds = self.seconds(begin, end)
            if inner is not None:
                seconds = self.paper(inner, tuple(below))
            volume = 4 / m * (m - 1) * self.weights(begin, end)
            parts.append(max(seconds, volume / level.bandwidth) / m)
            if begin > pipeline[0].begin:
                parts.append(self.cut(begin) / level.bandwidth)
        return max(parts)

    def stage_bytes(self, placement: Placement, memory: MemoryModel) -> list[float]:
        """As the runtime has the stages: what each needs on an accelerator."""
        pipeline = PlacedStages(self.workload, placement).pipeline
        in_flight = pipeline.in_flight(memory.method.in_flight_per_link)
        last = len(placement.stages) - 1
        return [
            float(memory.stage_bytes(self.workload.stage(s.operators, last=k == last), n))
            for k, (s, n) in enumerate(zip(placement.stages, in_flight, strict=True))
        ]


PROFILES = Path(__file__).parents[1] / "data" / "pipedream-profiles"
# Accelerators of a host, hosts.
SHAPES = [(1, 1), (3, 1), (4, 1), (2, 2), (3, 2), (2, 3)]


def link(bandwidth: float) -> Link:
    return Link(bandwidth_bytes_per_second=bandwidth)


def cluster_like(
    shape: tuple[int, int], bandwidths: tuple[float, ...], memory: float | None = None
) -> Cluster:
    accelerators, hosts = shape
    host = Host(name="host", count=hosts, accelerators=accelerators, memory_bytes=memory)
    return Cluster(
        hosts=(host,), within_host=link(bandwidths[0]), between_hosts=link(bandwidths[1])
    )


@st.composite
def workloads(draw: st.DrawFn, max_operators: int) -> Workload:
    graph = draw(graphs(max_operators=max_operators, chain=draw(st.booleans())))
    workload = Workload.of(draw(profiles(graph)))
    kept = draw(st.lists(st.integers(0, 9), min_size=len(graph), max_size=len(graph)))
    return replace(workload, kept_bytes=numpy.array(kept, dtype=float))


bandwidths = st.tuples(*[st.sampled_from([0.5, 2.0, 10.0])] * 2)


@given(
    data=st.data(),
    shape=st.sampled_from(SHAPES),
    bandwidths=bandwidths,
    limit=st.none() | st.integers(1, 120),
    replicate=st.booleans(),
    memory=st.builds(
        MemoryModel,
        st.builds(
            Method,
            policy=st.sampled_from(["vanilla", "pipeoptim", "stash"]),
            recompute=st.booleans(),
            in_flight_per_link=st.integers(0, 2),
        ),
        state_copies=st.integers(0, 1),
    ),
)
@settings(max_examples=70)
def test_the_optimum_of_its_formula_within_the_memory(
    data: st.DataObject,
    shape: tuple[int, int],
    bandwidths: tuple[float, ...],
    limit: int | None,
    replicate: bool,
    memory: MemoryModel,
) -> None:
    workload = data.draw(workloads(6 if shape[1] == 1 else 4))
    # Idle accelerators of a straight pipeline's later hosts count as workers.
    replicate = replicate or (limit is not None and shape[1] > 1)
    cluster = cluster_like(shape, bandwidths, limit)
    levels = levels_of(cluster)
    problem = PlanningProblem(workload, cluster, memory=memory, replicate=replicate)
    layers = chain_of_layers(workload)
    costs = Costs(workload, layers)
    seconds: dict[Placement, float] = {}
    for pipeline in every_pipeline(levels, 0, len(layers), replicate):
        placement = placement_of(pipeline, levels, layers)
        if limit is None or max(costs.stage_bytes(placement, memory)) <= limit:
            # Replicas of a pipeline are a pipeline of replicas, which the formula tells apart.
            others = seconds.get(placement, math.inf)
            seconds[placement] = min(costs.paper(pipeline, levels), others)
    if not seconds:
        with pytest.raises(NothingFits, match=f"fits into {limit} bytes"):
            pipedream(problem)
        return
    found = pipedream(problem)
    assert found.own_seconds == pytest.approx(min(seconds.values()))
    assert seconds[found.placement] == pytest.approx(found.own_seconds)


@pytest.mark.parametrize(
    "hosts",
    [
        [Host(name="a", accelerators=3), Host(name="b", accelerators=1)],
        [Host(name="a", accelerators=2), Host(name="b", accelerators=2, speed=0.5)],
        [
            Host(name="a", accelerators=1),
            Host(name="b", accelerators=2),
            Host(name="a", accelerators=1),
        ],
    ],
)
def test_irregular_clusters_are_one_level_of_the_slowest(hosts: list[Host]) -> None:
    cluster = Cluster(hosts=tuple(hosts), within_host=link(1e9), between_hosts=link(8.0))
    # What computes is replicated and what has weights is not, as of VGG-16 in the paper's table 1.
    _, profile = chain_of(
        seconds=[3, 3, 3, 3], parameter_bytes=[1, 1, 1, 90], output_bytes=[8, 4, 1, 1]
    )
    found = pipedream(PlanningProblem(Workload.of(profile), cluster))
    same = pipedream(PlanningProblem(Workload.of(profile), cluster_of(4, bandwidth=8)))
    assert found.placement == same.placement
    assert found.placement.configuration == "3-1"
    slower = 1 / min(host.speed for host in hosts)
    assert found.own_seconds == pytest.approx(same.own_seconds * slower)


def test_graphs_with_too_many_cuts_are_refused() -> None:
    graph = graph_of(
        [(0, b) for b in range(1, 13)] + [(b, 13) for b in range(1, 13)],
        parameter_bytes=[1] * 14,
        output_bytes=[1] * 14,
    )
    problem = PlanningProblem(Workload.of(profile_of(graph, [1] * 14)), cluster_of(2))
    with pytest.raises(InvalidInput, match="more than 1000 places"):
        pipedream(problem, cuts="graph")
    assert len(pipedream(problem).placement.stages) <= 2


def workload_of(graph: OpGraph) -> Workload:
    return Workload.of(profile_of(graph, [1] * len(graph)))


def held(states: States) -> list[set[int]]:
    return [set(states.operators(0, number)) for number in range(len(states))]


def test_branches_are_compressed_to_layers() -> None:
    # 0 → 1 → (2, 3, and 1 itself) → 4 → 5
    graph = graph_of(
        [(0, 1), (1, 2), (1, 3), (1, 4), (2, 4), (3, 4), (4, 5)],
        parameter_bytes=[1, 2, 4, 8, 16, 32],
        output_bytes=[1, 2, 3, 4, 5, 6],
    )
    states = chain_states(workload_of(graph))
    assert held(states) == [set(), {0}, {0, 1}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}]
    assert states.cut_bytes.tolist() == [0, 2, 4, 10, 0]
    # What the model returns early crosses every later cut; what has no gradient crosses once.
    graph, _ = chain_of(seconds=[1, 1, 1], parameter_bytes=[0] * 3, output_bytes=[5, 6, 7])
    graph = graph.model_copy(update={"outputs": ((0, 0), (2, 0))})
    assert chain_states(workload_of(graph)).cut_bytes.tolist() == [0, 2 * 5, 2 * (5 + 6), 0]
    graph = graph_of(
        [(0, 1)], parameter_bytes=[0, 0], output_bytes=[5, 6], dtypes=["int64", "float32"]
    )
    assert chain_states(workload_of(graph)).cut_bytes.tolist() == [0, 5, 0]


def test_sources_join_with_a_descendant_and_bring_their_readers() -> None:
    # (0, 1) → 2 → (3, 4)
    graph = graph_of(
        [(0, 2), (1, 2), (2, 3), (2, 4)], parameter_bytes=[0] * 5, output_bytes=[7] * 5
    )
    assert chain_of_layers(workload_of(graph)) == ((0, 1, 2), (3, 4))
    three = {0, 1, 2}
    every = [set(), {0}, three, three | {3}, three | {4}, three | {3, 4}]
    assert held(graph_states(workload_of(graph))) == every
    separate = graph_of([], parameter_bytes=[0] * 3, output_bytes=[7] * 3)
    assert held(graph_states(workload_of(separate))) == [set(), {0, 1, 2}]
    # (0, 1) → 2, 1 → 3
    graph = graph_of([(0, 2), (1, 2), (1, 3)], parameter_bytes=[0] * 4, output_bytes=[1] * 4)
    assert held(graph_states(workload_of(graph))) == [set(), {0}, {0, 1, 2}, {0, 1, 2, 3}]


@given(graphs(max_operators=8))
def test_states_of_a_graph_with_one_source_are_all_its_downsets(graph: OpGraph) -> None:
    edges = [(edge.source, edge.target) for edge in graph.edges]
    edges += [(0, op) for op in range(1, len(graph)) if not graph.predecessors[op]]
    sizes = [1] * len(graph)
    graph = graph_of(edges, parameter_bytes=sizes, output_bytes=sizes)
    downsets = [
        set(chosen)
        for size in range(len(graph) + 1)
        for chosen in combinations(range(len(graph)), size)
        if all(set(graph.predecessors[operator]) <= set(chosen) for operator in chosen)
    ]
    found = held(graph_states(workload_of(graph)))
    assert sorted(map(sorted, found)) == sorted(map(sorted, downsets))


@given(problems.workloads(max_operators=6))
@settings(max_examples=12)
def test_the_work_of_every_stage_is_that_of_its_operators(workload: Workload) -> None:
    states = graph_states(workload)
    work, found = states.work_with_limits, []
    for begin, end in permutations(range(len(states)), 2):
        if (states.holds[begin] <= states.holds[end]).all():
            last = bool(states.holds[end].all())
            found.append(workload.stage(states.operators(begin, end), last=last))
    for field in vars(work).keys() - {"method"}:
        each = numpy.broadcast_to(getattr(work, field), len(found))
        assert numpy.allclose(each, [getattr(one, field) for one in found]), field


@cache
def published(model: str) -> Workload:
    return Workload.of(read_pipedream_profile(PROFILES / f"{model}.txt"))


PAGE = Path(__file__).parents[2] / "docs" / "papers.md"
FILES = {"VGG-16": "vgg16", "AlexNet": "alexnet", "ResNet-50": "resnet50", "GNMT-8": "gnmt"}
ROWS = re.findall(
    r"^\| ([\w-]+) \| (\d+) \| [\d-]+ \| ([\d-]+) \|$",
    PAGE.read_text().partition("### PipeDream's planner against")[2],
    flags=re.MULTILINE,
)


def test_the_pages_table_of_configurations() -> None:
    assert len(ROWS) == 10
    for model, accelerators, configuration in ROWS:
        cluster = cluster_of(int(accelerators), 1.25e9)
        problem = PlanningProblem(published(FILES[model]), cluster)
        assert pipedream(problem, "graph").placement.configuration == configuration, model


def test_configurations_of_the_paper() -> None:
    """pipedream table 1, "4x4 (A)"; on levels VGG-16's is the one that is planned flat."""
    for model, configuration in (("vgg16", "15-1"), ("alexnet", "15-1"), ("resnet50", "16")):
        problem = PlanningProblem(published(model), cluster_of(16, 1.25e9))
        assert pipedream(problem).placement.configuration == configuration
    hosts = replace(
        problem, workload=published("vgg16"), cluster=cluster_like((4, 4), (1e10, 1.25e9))
    )
    found = pipedream(hosts, flat=True)
    assert found.own_seconds == pytest.approx(0.0442, abs=5e-5)
    # §5.2: "convolutional layers are replicated, fully connected layers are not".
    names = [published("vgg16").names[operator] for operator in found.placement.stages[1].operators]
    assert sum(name.startswith("Linear") for name in names) == 3
    assert not any(name.startswith(("Conv", "MaxPool")) for name in names)
