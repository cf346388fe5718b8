"""The planners against exhaustive search; costs are computed here from the papers' formulas."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import chain_of, cluster_of, graph_of, graphs, profile_of, profiles

from drlpp.cluster import Cluster, Host, Link
from drlpp.errors import InvalidInput
from drlpp.graph import OpGraph
from drlpp.placement import Placement
from drlpp.planners import PLANNERS, Planner, data_parallel, gpipe, pipedream
from drlpp.planners.chain import Layer, chain_of_layers
from drlpp.planners.pipedream import Variant

# (first layer, past the last layer, replicas) of every stage.
Plan = tuple[tuple[int, int, int], ...]


def every_plan(layers: int, accelerators: int) -> Iterator[Plan]:
    for stages in range(1, min(layers, accelerators) + 1):
        for inner in combinations(range(1, layers), stages - 1):
            cuts = [0, *inner, layers]
            for shares in combinations(range(1, accelerators), stages - 1):
                ends = [0, *shares, accelerators]
                yield tuple((cuts[k], cuts[k + 1], ends[k + 1] - ends[k]) for k in range(stages))


def paper_cost(plan: Plan, layers: tuple[Layer, ...], bandwidth: float) -> float:
    parts = []
    for begin, end, m in plan:
        seconds = sum(layer.seconds for layer in layers[begin:end])
        weights = sum(layer.parameter_bytes for layer in layers[begin:end])
        parts.append(max(seconds, 2 * (m - 1) * weights / bandwidth) / m)
        if begin > 0:
            parts.append(2 * layers[begin - 1].activation_bytes / bandwidth)
    return max(parts)


def code_cost(plan: Plan, layers: tuple[Layer, ...], bandwidth: float) -> float:
    parts = []
    for begin, end, m in plan:
        seconds = sum(layer.seconds for layer in layers[begin:end])
        weights = sum(layer.parameter_bytes for layer in layers[begin:end])
        parts.append((seconds + 4 * (m - 1) * weights / (m * bandwidth)) / m)
        if begin > 0:
            parts.append(2 * layers[begin - 1].activation_bytes / (m * bandwidth))
            if end < len(layers):
                parts.append(2 * layers[end - 1].activation_bytes / (m * bandwidth))
    return max(parts)


COSTS = {"paper": paper_cost, "code": code_cost}


def plan_of(placement: Placement, layers: tuple[Layer, ...]) -> Plan:
    """The plan that a placement is; fails if a stage cuts through a layer."""
    plan, begin = [], 0
    for stage in placement.stages:
        end, operators = begin, set(stage.operators)
        while operators:
            assert operators >= set(layers[end].operators)
            operators -= set(layers[end].operators)
            end += 1
        plan.append((begin, end, len(stage.accelerators)))
        begin = end
    return tuple(plan)


@pytest.mark.parametrize("variant", ["paper", "code"])
@given(data=st.data(), accelerators=st.integers(1, 4), chain=st.booleans())
@settings(deadline=None)
def test_pipedream_finds_the_optimum_of_its_formula(
    variant: Variant, data: st.DataObject, accelerators: int, chain: bool
) -> None:
    graph = data.draw(graphs(max_operators=7, chain=chain))
    profile = data.draw(profiles(graph))
    bandwidth = data.draw(st.sampled_from([0.5, 2.0, 10.0]))
    placement = pipedream(graph, profile, cluster_of(accelerators, bandwidth), variant)
    placement.validate_for(graph, accelerators)
    layers = chain_of_layers(graph, profile)
    cost = COSTS[variant]
    best = min(cost(plan, layers, bandwidth) for plan in every_plan(len(layers), accelerators))
    found = plan_of(placement, layers)
    assert cost(found, layers, bandwidth) == pytest.approx(best)
    as_good = [
        plan
        for plan in every_plan(len(layers), accelerators)
        if cost(plan, layers, bandwidth) <= best * (1 + 1e-9)
    ]
    assert found == min(as_good, key=_preference)


def _preference(plan: Plan) -> tuple[int, list[tuple[int, int]]]:
    """Fewer stages, then earlier cuts from the back, then fewer replicas at the back."""
    return len(plan), [(begin, m) for begin, _, m in reversed(plan)]


@given(data=st.data(), accelerators=st.integers(1, 5))
@settings(deadline=None)
def test_gpipe_is_the_most_even_split(data: st.DataObject, accelerators: int) -> None:
    graph = data.draw(graphs())
    profile = data.draw(profiles(graph))
    placement = gpipe(graph, profile, cluster_of(accelerators))
    placement.validate_for(graph, accelerators)
    stages = min(accelerators, len(graph))
    assert placement.configuration == "-".join(["1"] * stages)

    def seconds(cuts: tuple[int, ...]) -> list[float]:
        ends = [0, *cuts, len(graph)]
        return [sum(profile.seconds[ends[k] : ends[k + 1]]) for k in range(stages)]

    def evenness(cuts: tuple[int, ...]) -> tuple[float, float]:
        return round(max(seconds(cuts)), 9), round(sum(s * s for s in seconds(cuts)), 6)

    cuts = tuple(stage.operators[0] for stage in placement.stages[1:])
    assert [op for stage in placement.stages for op in stage.operators] == list(range(len(graph)))
    assert evenness(cuts) == min(map(evenness, combinations(range(1, len(graph)), stages - 1)))


def test_gpipe_spreads_what_is_left() -> None:
    graph, profile = chain_of(
        seconds=[10, 1, 1, 1, 1], parameter_bytes=[0] * 5, output_bytes=[1] * 5
    )
    placement = gpipe(graph, profile, cluster_of(3))
    assert [stage.operators for stage in placement.stages] == [(0,), (1, 2), (3, 4)]


def test_gpipe_minds_the_slowest_stage_before_evenness() -> None:
    # 2, 2, 5 has the same sum of squares and an earlier cut, but a slower stage than 4, 4, 1.
    graph, profile = chain_of(
        seconds=[1, 1, 2, 4, 1], parameter_bytes=[0] * 5, output_bytes=[1] * 5
    )
    placement = gpipe(graph, profile, cluster_of(3))
    assert [stage.operators for stage in placement.stages] == [(0, 1, 2), (3,), (4,)]


def test_data_parallel_is_one_stage() -> None:
    graph, profile = chain_of(seconds=[1, 2], parameter_bytes=[0, 0], output_bytes=[1, 1])
    placement = data_parallel(graph, profile, cluster_of(3))
    placement.validate_for(graph, 3)
    assert placement.configuration == "3"
    assert placement.stages[0].operators == (0, 1)


def test_pipedream_replicates_what_computes_and_not_what_has_weights() -> None:
    """The shape of VGG-16: 15-1 in pipedream's table 1, here 3-1."""
    graph, profile = chain_of(
        seconds=[3, 3, 3, 3], parameter_bytes=[1, 1, 1, 90], output_bytes=[8, 4, 1, 1]
    )
    placement = pipedream(graph, profile, cluster_of(4, bandwidth=10))
    assert placement.configuration == "3-1"
    assert placement.stages[1].operators == (3,)


def test_pipedream_on_cheap_links_is_data_parallel() -> None:
    graph, profile = chain_of(seconds=[3, 5], parameter_bytes=[1, 1], output_bytes=[1, 1])
    assert pipedream(graph, profile, cluster_of(2, bandwidth=1e9)).configuration == "2"


def test_variants_disagree_where_sum_and_maximum_do() -> None:
    graph, profile = chain_of(seconds=[4, 4], parameter_bytes=[3, 3], output_bytes=[1, 1])
    cluster = cluster_of(2, bandwidth=2)
    assert pipedream(graph, profile, cluster, "paper").configuration == "2"
    assert pipedream(graph, profile, cluster, "code").configuration == "1-1"


def test_the_slow_link_between_hosts_counts() -> None:
    graph, profile = chain_of(seconds=[4, 4], parameter_bytes=[5, 5], output_bytes=[1, 1])
    fast, slow = (Link(bandwidth_bytes_per_second=b) for b in (1e9, 1.0))
    hosts = tuple(Host(name=name, accelerators=1) for name in "ab")
    cluster = Cluster(hosts=hosts, within_host=fast, between_hosts=slow)
    assert pipedream(graph, profile, cluster).configuration == "1-1"


def test_branches_are_compressed_to_layers() -> None:
    # 0 → 1 → (2, 3, and 1 itself) → 4 → 5
    graph = graph_of(
        [(0, 1), (1, 2), (1, 3), (1, 4), (2, 4), (3, 4), (4, 5)],
        parameter_bytes=[1, 2, 4, 8, 16, 32],
        output_bytes=[1, 2, 3, 4, 5, 6],
    )
    layers = chain_of_layers(graph, profile_of(graph, [1, 1, 1, 1, 1, 1]))
    assert [layer.operators for layer in layers] == [(0,), (1,), (2, 3, 4), (5,)]
    assert [layer.activation_bytes for layer in layers] == [1, 2, 5, 0]
    assert [layer.parameter_bytes for layer in layers] == [1, 2, 28, 32]
    assert [layer.seconds for layer in layers] == pytest.approx([1, 1, 3, 1])


def test_what_the_model_returns_early_crosses_every_later_cut() -> None:
    graph, profile = chain_of(seconds=[1, 1, 1], parameter_bytes=[0] * 3, output_bytes=[5, 6, 7])
    graph = graph.model_copy(update={"outputs": ((0, 0), (2, 0))})
    layers = chain_of_layers(graph, profile)
    assert [layer.activation_bytes for layer in layers] == [5, 5 + 6, 0]


def test_two_sources_and_two_sinks() -> None:
    # (0, 1) → 2 → (3, 4)
    graph = graph_of(
        [(0, 2), (1, 2), (2, 3), (2, 4)], parameter_bytes=[0] * 5, output_bytes=[7] * 5
    )
    layers = chain_of_layers(graph, profile_of(graph, [1] * 5))
    assert [layer.operators for layer in layers] == [(0, 1, 2), (3, 4)]
    separate = graph_of([], parameter_bytes=[0] * 3, output_bytes=[7] * 3)
    assert len(chain_of_layers(separate, profile_of(separate, [1] * 3))) == 1


@given(graphs(max_operators=10))
def test_layers_are_cut_exactly_where_one_operator_holds_all_paths(graph: OpGraph) -> None:
    layers = chain_of_layers(graph, profile_of(graph, [1] * len(graph)))
    operators = [operator for layer in layers for operator in layer.operators]
    assert sorted(operators) == list(range(len(graph)))
    ends = {layer.operators[-1] for layer in layers} - {len(graph) - 1}
    for operator in range(len(graph) - 1):
        # An operator holds all paths if without it nothing before it reaches anything behind it,
        # and nothing before it ends, or behind it begins, on its own.
        passed_by = any(edge.source < operator < edge.target for edge in graph.edges)
        passed_by |= any(not graph.successors[before] for before in range(operator))
        passed_by |= any(not graph.predecessors[b] for b in range(operator + 1, len(graph)))
        holds_the_inputs = operator == 0 or bool(graph.predecessors[operator])
        is_point = not passed_by and holds_the_inputs and bool(graph.successors[operator])
        assert (operator in ends) == is_point


@pytest.mark.parametrize("planner", [gpipe, pipedream])
def test_a_profile_of_another_graph_is_refused(planner: Planner) -> None:
    graph, _ = chain_of(seconds=[1, 1], parameter_bytes=[1, 1], output_bytes=[1, 1])
    _, other = chain_of(seconds=[1, 1], parameter_bytes=[1, 2], output_bytes=[1, 1])
    with pytest.raises(InvalidInput, match="profile this model again"):
        planner(graph, other, cluster_of(2))


@pytest.mark.parametrize("name", PLANNERS)
def test_large_graphs_are_planned(name: str) -> None:
    count = 200
    graph, profile = chain_of(
        seconds=[1 + i % 7 for i in range(count)],
        parameter_bytes=[i % 11 for i in range(count)],
        output_bytes=[1 + i % 5 for i in range(count)],
    )
    placement = PLANNERS[name](graph, profile, cluster_of(8, bandwidth=1.0))
    placement.validate_for(graph, 8)
    assert placement.accelerators == tuple(range(8))
