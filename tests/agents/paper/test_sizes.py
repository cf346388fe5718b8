"""`--agent drl-pp` has the sizes of drl-pp §4.2, and nothing that goes beyond the paper."""

import pytest
from torch import nn

from drlpp.agents import AGENTS, PlacementPolicy
from drlpp.agents.paper.recurrence import Recurrence
from drlpp.envs import MeasurementMemory, PlacementEnv
from tests.support.planning.fake_measurer import FakeMeasurer, branching

ACCELERATORS = 3


@pytest.fixture
def policy() -> PlacementPolicy:
    env = PlacementEnv(MeasurementMemory(FakeMeasurer(branching(9), ACCELERATORS)))
    return AGENTS["drl-pp"].build(env, seed=0).policy


def hidden_layers(perceptron: nn.Module) -> list[int]:
    """Widths of the hidden layers of an MLP that ends in one score."""
    *hidden, score = [layer for layer in perceptron.modules() if isinstance(layer, nn.Linear)]
    assert score.out_features == 1
    return [layer.out_features for layer in hidden]


def test_the_graph_encoder_has_three_layers_of_32_64_and_128_units(policy: PlacementPolicy) -> None:
    # A type each of three, then §3.1's five numbers.
    assert policy.features.shape[1] == 3 + 5
    nodes, widths = policy.features, []
    for layer in policy.encoder.layers:
        nodes = layer(nodes, policy.edges)
        widths.append(nodes.shape[1])
    assert widths == [32, 64, 128]


def test_the_partitioner_has_two_lstms_and_two_perceptrons_of_128_units(
    policy: PlacementPolicy,
) -> None:
    recurrences = [
        module for module in policy.partitioner.children() if isinstance(module, Recurrence)
    ]
    assert [(lstm.units, lstm.input.in_features) for lstm in recurrences] == [(128, 128)] * 2
    perceptrons = [
        module for module in policy.partitioner.children() if isinstance(module, nn.Sequential)
    ]
    assert [hidden_layers(perceptron) for perceptron in perceptrons] == [[128]] * 2


def test_the_scheduler_is_a_perceptron_of_two_layers_of_128_units(policy: PlacementPolicy) -> None:
    assert policy.scheduler.embeddings.weight.shape == (ACCELERATORS, 128)
    assert hidden_layers(policy.scheduler.pair_score) == [128, 128]
    assert policy.scheduler.pair_score[0].in_features == 2 * 128
