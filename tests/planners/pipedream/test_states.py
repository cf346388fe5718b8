"""Where pipelines may be cut: chains of layers, sets of operators, and what crosses the cuts."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.capturing.graph import OpGraph
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.planners.pipedream.branch_compression import chain_of_layers
from drlpp.planners.pipedream.cut_points import States, chain_states, graph_states, released_states
from tests.support.strategies.graphs import chain_of, graph_of, graphs, profile_of, profiles


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
    workload = workload_of(graph)
    assert chain_of_layers(workload) == ((0,), (1,), (2, 3, 4), (5,))
    states = chain_states(workload)
    assert held(states) == [set(), {0}, {0, 1}, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4, 5}]
    assert states.cut_bytes.tolist() == [0, 2, 4, 10, 0]
    assert states.sums(workload.parameter_bytes)[1].tolist() == [0, 0, 2, 30, 62]
    assert states.operators(2, 4) == (2, 3, 4, 5)


def test_what_the_model_returns_early_crosses_every_later_cut() -> None:
    graph, _ = chain_of(seconds=[1, 1, 1], parameter_bytes=[0] * 3, output_bytes=[5, 6, 7])
    graph = graph.model_copy(update={"outputs": ((0, 0), (2, 0))})
    assert chain_states(workload_of(graph)).cut_bytes.tolist() == [0, 2 * 5, 2 * (5 + 6), 0]


def test_tensors_without_gradients_cross_once() -> None:
    graph = graph_of(
        [(0, 1)], parameter_bytes=[0, 0], output_bytes=[5, 6], dtypes=["int64", "float32"]
    )
    assert chain_states(workload_of(graph)).cut_bytes.tolist() == [0, 5, 0]


def test_two_sources_and_two_sinks() -> None:
    # (0, 1) → 2 → (3, 4)
    graph = graph_of(
        [(0, 2), (1, 2), (2, 3), (2, 4)], parameter_bytes=[0] * 5, output_bytes=[7] * 5
    )
    assert chain_of_layers(workload_of(graph)) == ((0, 1, 2), (3, 4))
    assert held(graph_states(workload_of(graph))) == [
        set(),
        {0},
        {0, 1, 2},
        {0, 1, 2, 3},
        {0, 1, 2, 4},
        {0, 1, 2, 3, 4},
    ]
    separate = graph_of([], parameter_bytes=[0] * 3, output_bytes=[7] * 3)
    assert chain_of_layers(workload_of(separate)) == ((0, 1, 2),)
    assert held(graph_states(workload_of(separate))) == [set(), {0, 1, 2}]


@given(graphs(max_operators=10))
def test_layers_are_cut_exactly_where_one_operator_holds_all_paths(graph: OpGraph) -> None:
    layers = chain_of_layers(workload_of(graph))
    operators = [operator for layer in layers for operator in layer]
    assert sorted(operators) == list(range(len(graph)))
    ends = {layer[-1] for layer in layers} - {len(graph) - 1}
    for operator in range(len(graph) - 1):
        # An operator holds all paths if without it nothing before it reaches anything behind it,
        # and nothing before it ends, or behind it begins, on its own.
        passed_by = any(edge.source < operator < edge.target for edge in graph.edges)
        passed_by |= any(not graph.successors[before] for before in range(operator))
        passed_by |= any(not graph.predecessors[b] for b in range(operator + 1, len(graph)))
        holds_the_inputs = operator == 0 or bool(graph.predecessors[operator])
        is_point = not passed_by and holds_the_inputs and bool(graph.successors[operator])
        assert (operator in ends) == is_point


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


def test_other_sources_join_with_a_descendant_and_bring_their_readers() -> None:
    # (0, 1) → 2, 1 → 3
    graph = graph_of([(0, 2), (1, 2), (1, 3)], parameter_bytes=[0] * 4, output_bytes=[1] * 4)
    assert held(graph_states(workload_of(graph))) == [set(), {0}, {0, 1, 2}, {0, 1, 2, 3}]


@given(data=st.data())
def test_work_of_all_stages_is_that_of_each(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_operators=7))
    workload = Workload.of(data.draw(profiles(graph)))
    gradients = [
        replace(transfer, backward_bytes=data.draw(st.integers(0, 9)))
        for transfer in workload.transfers
    ]
    workload = replace(workload, transfers=tuple(gradients))
    for states in (chain_states(workload), graph_states(workload)):
        sets = held(states)
        for i, j in product(range(len(states)), repeat=2):
            assert states.is_stage[i, j] == (sets[i] < sets[j])
            if not states.is_stage[i, j]:
                continue
            work = workload.stage(states.operators(i, j), last=j == len(states) - 1)
            for field in vars(work):
                # The number of microbatches is the same for all stages.
                of_all = numpy.broadcast_to(
                    getattr(states.work_with_limits, field), (len(states),) * 2
                )
                assert of_all[i, j] == pytest.approx(getattr(work, field)), field
        for number in range(len(states)):
            beginning = workload.stage(states.operators(0, number), last=number == len(states) - 1)
            both = beginning.incoming_bytes + beginning.outgoing_bytes
            assert states.cut_bytes[number] == pytest.approx(both)


def test_tensors_that_lead_back_cross_cuts_too() -> None:
    graph, _ = chain_of(seconds=[1, 1], parameter_bytes=[0, 0], output_bytes=[5, 6])
    workload = workload_of(graph)
    workload = replace(workload, transfers=(Transfer((1, 0), 0.0, 4.0),))
    assert chain_states(workload).cut_bytes.tolist() == [0, 4, 0]


def test_the_released_code_counts_what_an_other_branch_has_read() -> None:
    # 0 → 1 → 3, 0 → 2 → 3: behind {0, 1, 2} nobody reads the output of 0.
    graph = graph_of(
        [(0, 1), (0, 2), (1, 3), (2, 3)], parameter_bytes=[0] * 4, output_bytes=[1, 10, 100, 0]
    )
    ours, released = (f(workload_of(graph)) for f in (graph_states, released_states))
    assert held(ours) == held(released) == [set(), {0}, {0, 1}, {0, 2}, {0, 1, 2}, {0, 1, 2, 3}]
    assert ours.cut_bytes.tolist() == [0, 2, 22, 202, 220, 0]
    assert released.cut_bytes.tolist() == [0, 2, 22, 202, 222, 0]
