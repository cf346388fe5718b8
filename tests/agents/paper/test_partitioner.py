"""The partitioner replays its walks, and is Algorithm 1; all walks make chains of downsets."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from drlpp.agents.paper.partitioner import Recurrence, RecurrentPartitioner
from drlpp.agents.paper.walk import CUT, PartitionWalk, Walk
from drlpp.capturing.graph import OpGraph
from tests.support.planning.fake_measurer import branching, chain, graph_of, graphs

UNITS = 16


def randomised(graph: OpGraph, partitions: int, temperature: float = 0.5) -> RecurrentPartitioner:
    """A partitioner whose scores differ widely, as after training."""
    partitioner = RecurrentPartitioner(graph, partitions, UNITS, temperature)
    for parameter in partitioner.parameters():
        nn.init.normal_(parameter, std=0.5)
    return partitioner


def reference_cell(recurrence: Recurrence) -> nn.LSTMCell:
    cell = nn.LSTMCell(recurrence.input.in_features, recurrence.units)
    cell.weight_ih.data = recurrence.input.weight.data
    cell.bias_ih.data = recurrence.input.bias.data
    cell.weight_hh.data = recurrence.recurrent.weight.data
    cell.bias_hh.data.zero_()
    return cell


def algorithm_1(
    partitioner: RecurrentPartitioner, nodes: Tensor, walk: PartitionWalk
) -> list[float]:
    """Log-probabilities of all choices, each computed from the start as in lines 12 to 16."""
    cutter, selector = reference_cell(partitioner.cutter), reference_cell(partitioner.selector)

    def run(cell: nn.LSTMCell, state: tuple[Tensor, Tensor], sequence: list[Tensor]) -> tuple:
        for element in sequence:
            state = cell(element, state)
        return state

    log_probs = []
    for decision in walk.decisions:
        starts = [*walk.starts, len(walk.order)]
        before = (torch.zeros(UNITS), torch.zeros(UNITS))
        for k in range(decision.partition):
            members = nodes[list(walk.order[starts[k] : starts[k + 1]])]
            before = run(cutter, before, [members.sum(dim=0) / len(nodes)])
        members = nodes[list(walk.order[starts[decision.partition] : decision.placed])]
        encoded, _ = run(cutter, before, [members.sum(dim=0) / len(nodes)])
        scores = []
        if decision.may_cut:
            scores.append(partitioner.cut_score(encoded) - partitioner.temperature)
        for candidate in decision.candidates:
            encoded, _ = run(selector, before, [*members, nodes[candidate]])
            scores.append(partitioner.candidate_score(encoded))
        policy = torch.cat(scores).log_softmax(dim=0)
        log_probs.append(policy[decision.choice + decision.may_cut].item())
    return log_probs


@settings(max_examples=20)
@given(graph=graphs(8), partitions=st.integers(1, 4), seed=st.integers(0, 1000))
def test_sampling_and_replay_equal_algorithm_1(graph: OpGraph, partitions: int, seed: int) -> None:
    torch.manual_seed(seed)
    partitioner = randomised(graph, partitions)
    nodes = torch.randn(len(graph), UNITS)
    walks = partitioner.sample(nodes, 4)
    with torch.no_grad():
        replayed, entropies = partitioner.evaluate(nodes, walks)
        expected = [algorithm_1(partitioner, nodes, walk) for walk in walks]
    for walk, values in zip(walks, expected, strict=True):
        assert walk.log_probs == pytest.approx(values, abs=1e-5)
    free = [
        value
        for walk, values in zip(walks, expected, strict=True)
        for decision, value in zip(walk.decisions, values, strict=True)
        if not decision.forced
    ]
    assert replayed.tolist() == pytest.approx(free, abs=1e-5)
    assert entropies.isfinite().all()
    assert (entropies >= 0).all()


def test_the_entropy_is_that_of_the_policy() -> None:
    partitioner = RecurrentPartitioner(chain(3), 2, UNITS, temperature=0.0)
    nn.init.zeros_(partitioner.cut_score[-1].weight)
    nn.init.zeros_(partitioner.candidate_score[-1].weight)
    nodes = torch.randn(3, UNITS)
    _, entropies = partitioner.evaluate(nodes, partitioner.sample(nodes, 3))
    assert entropies.tolist() == pytest.approx([0.6931] * len(entropies), abs=1e-4)


@pytest.mark.parametrize("graph", [chain(12), branching(30)], ids=["chain", "branches"])
def test_the_automatic_temperature_makes_about_as_many_cuts_as_there_can_be(graph: OpGraph) -> None:
    torch.manual_seed(0)
    partitioner = RecurrentPartitioner(graph, 4, UNITS)
    nodes = torch.randn(len(graph), UNITS)
    partitioner.calibrate(nodes)
    walks = partitioner.sample(nodes, 200, partitions=len(graph))
    cuts = [sum(decision.choice == CUT for decision in walk.decisions) for walk in walks]
    assert sum(cuts) / len(cuts) == pytest.approx(3, abs=0.8)


def walked(graph: OpGraph, partitions: int, choose: Callable[[Walk], int]) -> PartitionWalk:
    walk = Walk(graph.predecessors, graph.successors, partitions)
    while not walk.finished:
        walk.take(choose(walk), 0.0)
    return walk.result()


@settings(max_examples=60)
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
    walk = Walk(graph.predecessors, graph.successors, len(graph) + 1)
    placed: set[int] = set()
    while not walk.finished:
        next_to = {op for op in range(len(graph)) if placed & set(graph.predecessors[op])}
        inputs = {op for op in range(len(graph)) if not graph.predecessors[op]}
        assert set(walk.candidates) == (next_to | inputs) - placed
        placed |= set(walk.take(data.draw(st.integers(0, len(walk.candidates) - 1)), 0.0))


def test_a_candidate_drags_in_what_it_depends_on() -> None:
    graph = branching(6)
    assert graph.predecessors[5] == (3, 4)
    walk = Walk(graph.predecessors, graph.successors, 2)
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
