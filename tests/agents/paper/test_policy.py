"""Encoder, partitioner and scheduler are the paper's, and the policy replays what it samples."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from drlpp.agents import AGENTS, PlacementPolicy
from drlpp.agents.paper.encoder import (
    GraphConvolution,
    GraphEncoder,
    node_features,
    undirected_edges,
)
from drlpp.agents.paper.partitioner import Recurrence, RecurrentPartitioner
from drlpp.agents.paper.scheduler import PipelineScheduler
from drlpp.agents.paper.walk import CUT, PartitionWalk, Walk
from drlpp.capturing.graph import OpGraph
from drlpp.envs import MeasurementMemory, PlacementEnv
from tests.support.planning.fake_measurer import FakeMeasurer, branching, chain, graph_of, graphs
from tests.support.strategies.graphs import tied_chain


def policy_of(graph: OpGraph, accelerators: int = 4, **options: Any) -> PlacementPolicy:
    env = PlacementEnv(MeasurementMemory(FakeMeasurer(graph, accelerators)))
    return PlacementPolicy(
        env.observation_space, env.action_space, lambda _: 1e-3, graph, **options
    )


@settings(max_examples=20)
@given(graph=graphs(8), accelerators=st.integers(1, 4))
def test_feasible_samples_are_valid_placements(graph: OpGraph, accelerators: int) -> None:
    policy = policy_of(graph, accelerators, encoder_units=(8, 8), feasible=True)
    env = PlacementEnv(MeasurementMemory(FakeMeasurer(graph, accelerators)))
    for trajectory in policy.sample(4, 2):
        assert env.action_space.contains(trajectory.action)
        assert "seconds" in env.step(trajectory.action)[4]


@pytest.mark.parametrize("feasible", [False, True])
def test_replay_equals_sampling(feasible: bool) -> None:
    policy = policy_of(branching(12), feasible=feasible)
    trajectories = policy.sample(6, 3)
    walks = [trajectory.walk for trajectory in trajectories[::3]]
    with torch.no_grad():
        evaluation = policy.evaluate(walks, trajectories)
    sampled = [log_prob for walk in walks for log_prob in walk.free_log_probs]
    assert evaluation.partitioner_log_probs.tolist() == pytest.approx(sampled, abs=1e-5)
    assignment = torch.tensor([trajectory.log_probs for trajectory in trajectories])
    expected = assignment[evaluation.scheduler_free].tolist()
    assert evaluation.scheduler_log_probs.tolist() == pytest.approx(expected, abs=1e-5)


def test_every_weight_learns() -> None:
    policy = policy_of(branching(12), temperature=1.0)
    trajectories = policy.sample(8)
    evaluation = policy.evaluate([trajectory.walk for trajectory in trajectories], trajectories)
    sum(values.sum() for values in evaluation[:4]).backward()  # type: ignore[union-attr]
    for name, parameter in policy.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


def hidden_layers(perceptron: nn.Module) -> list[int]:
    """Widths of the hidden layers of an MLP that ends in one score."""
    *hidden, score = [layer for layer in perceptron.modules() if isinstance(layer, nn.Linear)]
    assert score.out_features == 1
    return [layer.out_features for layer in hidden]


def test_the_papers_sizes_are_those_of_section_4_2() -> None:
    env = PlacementEnv(MeasurementMemory(FakeMeasurer(branching(9), 3)))
    policy = AGENTS["drl-pp"].build(env, seed=0).policy
    # A type each of three, then §3.1's five numbers.
    assert policy.features.shape[1] == 3 + 5
    nodes, widths = policy.features, []
    for layer in policy.encoder.layers:
        nodes = layer(nodes, policy.edges)
        widths.append(nodes.shape[1])
    assert widths == [32, 64, 128]
    parts = list(policy.partitioner.children())
    recurrences = [module for module in parts if isinstance(module, Recurrence)]
    assert [(lstm.units, lstm.input.in_features) for lstm in recurrences] == [(128, 128)] * 2
    perceptrons = [module for module in parts if isinstance(module, nn.Sequential)]
    assert [hidden_layers(perceptron) for perceptron in perceptrons] == [[128]] * 2
    assert policy.scheduler.embeddings.weight.shape == (3, 128)
    assert hidden_layers(policy.scheduler.pair_score) == [128, 128]
    assert policy.scheduler.pair_score[0].in_features == 2 * 128


WIDTH = 8
STAGES = torch.tensor([1, 2, 3])


@pytest.fixture
def summaries() -> Tensor:
    return torch.randn(3, 3, WIDTH)


def scheduler_of(accelerators: int, feasible: bool) -> PipelineScheduler:
    torch.manual_seed(0)
    scheduler = PipelineScheduler(accelerators, WIDTH, feasible)
    for parameter in scheduler.parameters():
        nn.init.normal_(parameter, std=0.7)
    return scheduler


def test_scores_pair_an_accelerator_with_a_partition(summaries: Tensor) -> None:
    scheduler = scheduler_of(4, feasible=False)
    scores = scheduler(summaries, STAGES)
    assert scores.shape == (3, 4, 3)
    pair = torch.cat([scheduler.embeddings.weight[2], summaries[1, 0]])
    assert scores[1, 2, 0].item() == pytest.approx(scheduler.pair_score(pair).item(), abs=1e-5)
    assert scores.isfinite().sum(dim=2).tolist() == [[1] * 4, [2] * 4, [3] * 4]


@torch.no_grad()
@pytest.mark.parametrize("feasible", [False, True])
def test_probabilities_of_all_assignments_sum_to_one(feasible: bool, summaries: Tensor) -> None:
    scheduler = scheduler_of(4, feasible)
    scores = scheduler(summaries, STAGES)
    for scheme, stages in enumerate(STAGES.tolist()):
        assignments = torch.tensor(list(itertools.product(range(stages), repeat=4)))
        held = [len(set(assignment.tolist())) == stages for assignment in assignments]
        possible = assignments[torch.tensor(held)] if feasible else assignments
        own = scores[scheme].expand(len(possible), -1, -1)
        probabilities = scheduler.evaluate(own, possible)[0].sum(dim=1).exp()
        assert probabilities.sum().item() == pytest.approx(1, abs=1e-5)
        assert (probabilities > 0).all()


def test_with_as_many_stages_as_accelerators_the_last_choice_is_forced() -> None:
    scheduler = scheduler_of(3, feasible=True)
    scores = scheduler(torch.randn(1, 3, WIDTH), torch.tensor([3]))
    log_probs, entropies, free = scheduler.evaluate(scores, torch.tensor([[2, 0, 1]]))
    assert free.tolist() == [[True, True, False]]
    (log_probs.sum() + entropies.sum()).backward()
    assert all(parameter.grad.isfinite().all() for parameter in scheduler.parameters())  # type: ignore


def equation_1(layer: GraphConvolution, nodes: Tensor, edges: Tensor) -> Tensor:
    adjacency = torch.eye(len(nodes))
    adjacency[edges[0], edges[1]] = 1.0
    inverse_degree = torch.diag(1 / adjacency.sum(dim=1))
    itself = nodes @ layer.itself.weight.T + layer.itself.bias
    neighbours = (
        inverse_degree @ adjacency @ nodes @ layer.neighbours.weight.T + layer.neighbours.bias
    )
    return torch.tanh(torch.cat([itself, neighbours], dim=1))


@given(graph=graphs())
@settings(max_examples=15)
def test_it_equals_equation_1(graph: OpGraph) -> None:
    nodes, edges = node_features(graph), undirected_edges(graph)
    encoder = GraphEncoder(nodes.shape[1])
    expected = nodes
    for layer in encoder.layers:
        assert isinstance(layer, GraphConvolution)
        expected = equation_1(layer, expected, edges)
    encoded = encoder(nodes, edges)
    assert encoded.shape == (len(graph), 128)
    torch.testing.assert_close(encoded, expected, atol=1e-6, rtol=1e-5)


def test_features_of_a_small_graph() -> None:
    graph = branching(5)
    assert [(edge.source, edge.target) for edge in graph.edges] == [
        (0, 1), (0, 2), (1, 3), (2, 4), (3, 4),
    ]  # fmt: skip
    features = node_features(graph)
    # Types in alphabetical order: conv2d, linear, relu.
    assert features[:, :3].tolist() == [[1, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 0, 1]]
    input_degree, input_size, output_degree, output_size, parameter_size = features[:, 3:].T
    assert input_degree.tolist() == [0, 0.5, 0.5, 0.5, 1]
    assert output_degree.tolist() == [1, 0.5, 0.5, 0.5, 0]
    bytes_ = torch.tensor([float(operator.output_bytes) for operator in graph.operators])
    read = torch.stack([torch.tensor(0.0), bytes_[0], bytes_[0], bytes_[1], bytes_[2] + bytes_[3]])
    assert torch.allclose(output_size, bytes_ / bytes_.max())
    assert torch.allclose(input_size, read / read.max())
    parameters = torch.tensor([float(operator.parameter_bytes) for operator in graph.operators])
    assert torch.allclose(parameter_size, parameters / parameters.max())


def test_edges_go_both_ways() -> None:
    assert undirected_edges(chain(3)).T.tolist() == [[0, 1], [1, 0], [1, 2], [2, 1]]
    assert undirected_edges(chain(1)).shape == (2, 0)


def test_a_shared_weight_joins_its_readers() -> None:
    shared = tied_chain([1, 1, 1], 8).graph
    assert undirected_edges(shared).T.tolist() == [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]]
    frozen = tied_chain([1, 1, 1], 8, trained=False).graph
    assert undirected_edges(frozen).T.tolist() == undirected_edges(chain(3)).T.tolist()


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
