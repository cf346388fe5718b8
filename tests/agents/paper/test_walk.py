"""Whatever the walk chooses, its partitions are a chain of downsets."""

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.agents.paper.walk import CUT, PartitionWalk, Walk
from drlpp.capturing.graph import OpGraph
from tests.support.planning.fake_measurer import branching, chain, graph_of, graphs


def walked(graph: OpGraph, partitions: int, choose: Callable[[Walk], int]) -> PartitionWalk:
    walk = Walk(graph, partitions)
    while not walk.finished:
        walk.take(choose(walk), 0.0)
    return walk.result()


@settings(max_examples=200)
@given(graph=graphs(), partitions=st.integers(1, 5), data=st.data())
def test_partitions_are_a_chain_of_downsets(
    graph: OpGraph, partitions: int, data: st.DataObject
) -> None:
    def choose(walk: Walk) -> int:
        lowest = 0 if walk.begins else CUT
        return data.draw(st.integers(lowest, len(walk.candidates) - 1))

    walk = walked(graph, partitions, choose)
    stage_of = walk.stage_of_operator
    assert set(stage_of) == set(range(walk.stages))
    assert walk.stages <= partitions
    assert all(stage_of[edge.source] <= stage_of[edge.target] for edge in graph.edges)
    assert len(set(walk.order)) == len(walk.order)
    for position, operator in enumerate(walk.order):
        started = sum(start <= position for start in walk.starts)
        assert stage_of[operator] == started - 1


@given(graph=graphs(), data=st.data())
def test_candidates_are_next_to_what_has_been_placed(graph: OpGraph, data: st.DataObject) -> None:
    walk = Walk(graph, len(graph) + 1)
    placed: set[int] = set()
    while not walk.finished:
        next_to = {op for op in range(len(graph)) if placed & set(graph.predecessors[op])}
        inputs = {op for op in range(len(graph)) if not graph.predecessors[op]}
        assert set(walk.candidates) == (next_to | inputs) - placed
        placed |= set(walk.take(data.draw(st.integers(0, len(walk.candidates) - 1)), 0.0))


def test_a_candidate_drags_in_what_it_depends_on() -> None:
    graph = branching(6)
    assert graph.predecessors[5] == (3, 4)
    walk = Walk(graph, 2)
    walk.take(0, 0.0)
    assert walk.candidates == (1, 2)
    assert walk.take(0, 0.0) == (1,)
    assert walk.take(walk.candidates.index(3), 0.0) == (3,)
    assert walk.candidates == (2, 5)
    assert walk.take(1, 0.0) == (2, 4, 5)
    assert walk.finished


def test_only_what_has_no_alternative_is_forced() -> None:
    walk = walked(graph_of(3, [(0, 2), (1, 2)]), 3, lambda walk: 0 if walk.begins else CUT)
    assert [decision.forced for decision in walk.decisions] == [False, False, False, False]
    straight = walked(chain(3), 3, lambda walk: 0 if walk.begins else CUT)
    assert [decision.forced for decision in straight.decisions] == [True, False, True, False]
