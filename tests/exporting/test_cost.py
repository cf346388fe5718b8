"""What an export costs by the simulator: tensors that are handed on."""

import pytest

from drlpp.capturing.capture import capture
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.costs.workload import Workload
from drlpp.exporting.cost import ExportCost, with_relays
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.simulator.simulation import simulate
from drlpp.specs.cluster import Link, local_cluster
from tests.support.training.pipelines import in_a_row

GPIPE = Method(schedule="gpipe", policy="sync", microbatches=2)
CLUSTER = local_cluster(4, Link(bandwidth_bytes_per_second=1e9))


@pytest.fixture(scope="module")
def profile():
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    return estimate_profile(captured.graph)


def branching() -> Placement:
    """Stages 1 and 2 read stage 0; stage 3 reads all."""
    return Placement.from_assignment([0, 0, 0, 1, 2, 2, 2, *[3] * 9], (0, 1, 2, 3))


def test_every_tensor_goes_to_the_next_stage_at_most(profile) -> None:
    relayed, placement = with_relays(profile, branching())
    placement.validate_for(relayed.graph, 4)
    pipeline = placement.pipeline(relayed.graph)
    assert [(edge.source, edge.target) for edge in pipeline.edges] == [(0, 1), (1, 2), (2, 3)]
    # Of the outputs of tanh one is for stages 1 and 3, the other for 2; the LSTM's is for 3.
    names = [op.name for op in relayed.graph.operators if op.type == "relay"]
    assert sorted(names) == [
        "lstm.lstm output 0 through stage 2",
        "tanh output 0 through stage 1",
        "tanh output 0 through stage 2",
        "tanh output 1 through stage 1",
    ]
    stage_of = placement.stage_of_operator(len(relayed.graph))
    bytes_of = relayed.graph.crossing_bytes(stage_of)
    before = profile.graph.crossing_bytes(branching().stage_of_operator(len(profile.graph)))
    # What crosses the border between stages 1 and 2 is all that goes from 0 and 1 behind it.
    assert bytes_of[1, 2] == sum(
        size for (source, target), size in before.items() if source <= 1 and target >= 2
    )
    assert sum(relayed.seconds) == pytest.approx(sum(profile.seconds))


def test_where_nothing_is_handed_on_nothing_changes(profile) -> None:
    placement = in_a_row(profile.graph, 0, 1)
    relayed, same = with_relays(profile, placement)
    assert relayed.graph.operators == profile.graph.operators
    assert set(relayed.graph.edges) == set(profile.graph.edges)
    assert relayed.graph.outputs == profile.graph.outputs
    assert relayed.operators == profile.operators
    assert same == placement
    candidate = Candidate(placement, GPIPE)
    assert ExportCost.of(profile, CLUSTER, candidate, candidate).ratio == 1


def test_a_chain_of_branches_costs_what_the_simulator_says(profile) -> None:
    candidate = Candidate(branching(), GPIPE)
    cost = ExportCost.of(profile, CLUSTER, candidate, candidate)
    own = simulate(Workload.of(profile, GPIPE), CLUSTER, branching(), GPIPE, 30)
    assert cost.original_seconds == own.seconds_per_minibatch
    assert cost.ratio > 1
