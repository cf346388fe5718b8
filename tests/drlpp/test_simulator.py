from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import chain_of, cluster_of, graph_of, graphs, placements, profile_of, profiles

from drlpp.cluster import Cluster, Host, Link
from drlpp.errors import InvalidCluster, InvalidInput, InvalidPlacement
from drlpp.measurement import Measurement
from drlpp.placement import Placement
from drlpp.planners import pipedream
from drlpp.schedule import Update, build_schedule
from drlpp.simulator import SimulatedCluster, action_seconds, predict
from drlpp.timeline import play

GRAPH, PROFILE = chain_of(seconds=[6, 3, 3], parameter_bytes=[4, 10, 20], output_bytes=[5, 7, 1])


def test_compute_of_the_slowest_stage_rules() -> None:
    placement = Placement.from_assignment([0, 1, 1], [0, 0, 1])
    prediction = predict(GRAPH, PROFILE, cluster_of(3, bandwidth=1e9), placement)
    assert [stage.compute_seconds for stage in prediction.stages] == pytest.approx([3, 6])
    assert prediction.seconds_per_minibatch == pytest.approx(6)
    assert prediction.bottleneck == "compute of stage 1"


def test_ring_all_reduce_overlaps_with_compute() -> None:
    """2(m − 1)/m · W / B for a round of m minibatches, against T / m."""
    placement = Placement.from_assignment([0, 0, 0], [0, 0, 0])
    slow = predict(GRAPH, PROFILE, cluster_of(3, bandwidth=2), placement)
    assert slow.stages[0].all_reduce_seconds == pytest.approx(2 * 2 / 3 * 34 / 2 / 3)
    assert slow.bottleneck == "all-reduce of stage 0 (3 replicas)"
    assert slow.seconds_per_minibatch == slow.stages[0].all_reduce_seconds
    fast = predict(GRAPH, PROFILE, cluster_of(3, bandwidth=100), placement)
    assert fast.seconds_per_minibatch == pytest.approx(12 / 3)
    assert fast.bottleneck == "compute of stage 0 (3 replicas)"


def test_a_ring_pays_latency_for_each_of_its_messages() -> None:
    link = Link(bandwidth_bytes_per_second=1e9, latency_seconds=100)
    cluster = Cluster(hosts=(Host(name="a", accelerators=3),), within_host=link)
    placement = Placement.from_assignment([0, 0, 0], [0, 0, 0])
    prediction = predict(GRAPH, PROFILE, cluster, placement)
    assert prediction.stages[0].all_reduce_seconds == pytest.approx(4 * 100 / 3)


def test_links_carry_activations_forward_and_gradients_back() -> None:
    link = Link(bandwidth_bytes_per_second=0.5, latency_seconds=1)
    cluster = Cluster(hosts=(Host(name="a", accelerators=2),), within_host=link)
    prediction = predict(GRAPH, PROFILE, cluster, Placement.from_assignment([0, 1, 1], [0, 1]))
    assert [(x.activation_bytes, x.gradient_bytes) for x in prediction.links] == [(5, 5)]
    assert prediction.seconds_per_minibatch == pytest.approx(2 * (1 + 5 / 0.5))
    assert prediction.bottleneck == "link from stage 0 to stage 1"


def test_integers_have_no_gradients() -> None:
    graph = graph_of(
        [(0, 1)], parameter_bytes=[0, 0], output_bytes=[8, 4], dtypes=["int64", "float32"]
    )
    placement = Placement.from_assignment([0, 1], [0, 1])
    prediction = predict(graph, profile_of(graph, [1, 1]), cluster_of(2), placement)
    assert (prediction.links[0].activation_bytes, prediction.links[0].gradient_bytes) == (8, 0)
    assert prediction.seconds_per_minibatch == pytest.approx(8)


@pytest.mark.parametrize(
    ("stage_of_accelerator", "seconds"), [([0, 0, 1, 1], 5), ([0, 1, 1, 1], 10), ([0, 0, 0, 1], 10)]
)
def test_replicas_share_a_link_as_far_as_the_fewer_can(
    stage_of_accelerator: list[int], seconds: float
) -> None:
    placement = Placement.from_assignment([0, 1, 1], stage_of_accelerator)
    prediction = predict(GRAPH, PROFILE, cluster_of(4), placement)
    assert prediction.links[0].seconds == pytest.approx(seconds)


def test_round_robin_uses_slow_and_fast_links() -> None:
    """Stage 1 stands on host b; half of stage 0 has to cross hosts to reach it."""
    cluster = Cluster(
        hosts=(Host(name="a", accelerators=1), Host(name="b", accelerators=2)),
        within_host=Link(bandwidth_bytes_per_second=1e9),
        between_hosts=Link(bandwidth_bytes_per_second=1.0),
    )
    prediction = predict(GRAPH, PROFILE, cluster, Placement.from_assignment([0, 1, 1], [0, 0, 1]))
    assert prediction.links[0].seconds == pytest.approx((5 + 5) / 2)


def test_updates_count_once_a_round() -> None:
    profile = PROFILE.model_copy(update={"update_seconds_per_byte": 2.0})
    placement = Placement.from_assignment([0, 0, 0], [0, 0])
    prediction = predict(GRAPH, profile, cluster_of(2, bandwidth=1e9), placement)
    assert prediction.stages[0].update_seconds == pytest.approx(2.0 * 34 / 2)
    assert prediction.seconds_per_minibatch == pytest.approx(12 / 2 + 34)


def test_the_slowest_replica_sets_the_pace() -> None:
    placement = Placement.from_assignment([0, 0, 0], [0, 0])
    cluster = cluster_of(2, bandwidth=1e9)
    prediction = predict(GRAPH, PROFILE, cluster, placement, speeds=[1.0, 0.25])
    assert prediction.seconds_per_minibatch == pytest.approx(12 / 2 / 0.25)


def test_outputs_of_earlier_stages_go_to_the_loss() -> None:
    graph = graph_of([(0, 1), (0, 2)], parameter_bytes=[0] * 3, output_bytes=[1, 50, 1])
    placement = Placement.from_assignment([0, 0, 1], [0, 1])
    prediction = predict(graph, profile_of(graph, [1, 1, 1]), cluster_of(2), placement)
    assert prediction.links[0].activation_bytes == 51


def test_a_tensor_that_several_operators_of_a_stage_read_is_sent_once() -> None:
    graph = graph_of([(0, 1), (0, 2), (1, 2)], parameter_bytes=[0] * 3, output_bytes=[9, 1, 1])
    placement = Placement.from_assignment([0, 1, 1], [0, 1])
    prediction = predict(graph, profile_of(graph, [1, 1, 1]), cluster_of(2), placement)
    assert prediction.links[0].activation_bytes == 9


@given(st.data())
@settings(deadline=None, max_examples=60)
def test_no_schedule_is_faster_than_predicted_without_communication(data: st.DataObject) -> None:
    """Played action by action, a pipeline is at best as fast as its slowest stage."""
    graph = data.draw(graphs())
    profile = profile_of(graph, data.draw(st.lists(st.integers(1, 9), min_size=8))[: len(graph)])
    placement = data.draw(placements(graph, accelerators=4))
    cluster = cluster_of(4, bandwidth=1e12)
    speeds = data.draw(st.lists(st.sampled_from([0.5, 1.0]), min_size=4, max_size=4))
    predicted = predict(graph, profile, cluster, placement, speeds).seconds_per_minibatch
    minibatches = 60
    schedule = build_schedule(placement.pipeline(graph), minibatches)
    timed = play(schedule, action_seconds(graph, profile, cluster, placement, speeds))
    updates = sorted(t.end for t in timed if isinstance(t.action, Update))
    assert updates[-1] >= minibatches * predicted * (1 - 1e-6)


@pytest.mark.parametrize("replicas", [(1, 1, 1), (3,), (2, 1)])
def test_balanced_pipelines_run_as_predicted(replicas: tuple[int, ...]) -> None:
    """Where stages keep pace, playing the schedule reaches the prediction to a few percent."""
    operators = len(replicas)
    graph, profile = chain_of(
        seconds=[3.0 * m for m in replicas],
        parameter_bytes=[0] * operators,
        output_bytes=[1] * operators,
    )
    accelerators = [stage for stage, m in enumerate(replicas) for _ in range(m)]
    placement = Placement.from_assignment(range(operators), accelerators)
    cluster = cluster_of(3, bandwidth=1e9)
    predicted = predict(graph, profile, cluster, placement).seconds_per_minibatch
    schedule = build_schedule(placement.pipeline(graph), 120)
    timed = play(schedule, action_seconds(graph, profile, cluster, placement))
    assert max(t.end for t in timed) / 120 == pytest.approx(predicted, rel=0.05)


def test_microbatches_take_their_part_of_a_minibatch() -> None:
    placement = Placement.from_assignment([0, 1, 1], [0, 1])
    cluster = cluster_of(2)
    schedule = build_schedule(placement.pipeline(GRAPH), 1, "gpipe", microbatches=5)
    seconds_of = action_seconds(GRAPH, PROFILE, cluster, placement, microbatches=5)
    first, *_, last = schedule.actions[1]
    assert seconds_of(1, first) == pytest.approx(5 / 5)
    assert seconds_of(1, schedule.actions[1][1]) == pytest.approx(6 / 3 / 5)
    assert seconds_of(1, last) == 0


def test_measuring_is_deterministic_and_refuses_invalid_placements() -> None:
    cluster = cluster_of(3, bandwidth=100)
    simulated = SimulatedCluster(GRAPH, PROFILE, cluster)
    placement = pipedream(GRAPH, PROFILE, cluster)
    outcome = simulated.measure(placement, minibatches=7)
    assert outcome == simulated.measure(placement, minibatches=7)
    assert isinstance(outcome, Measurement)
    assert outcome.minibatches == 7
    assert (
        outcome.seconds_per_minibatch
        == predict(GRAPH, PROFILE, cluster, placement).seconds_per_minibatch
    )
    with pytest.raises(InvalidPlacement, match="in no stage"):
        simulated.measure(Placement.from_assignment([0, 0], [0]))
    assert (simulated.graph, simulated.accelerators) == (GRAPH, 3)
    simulated.close()


def test_speeds_change_measurements() -> None:
    placement = Placement.from_assignment([0, 1, 1], [0, 1])
    cluster = cluster_of(2, bandwidth=1e9)
    even = SimulatedCluster(GRAPH, PROFILE, cluster).measure(placement)
    slow = SimulatedCluster(GRAPH, PROFILE, cluster, speeds=[1, 0.5]).measure(placement)
    assert isinstance(even, Measurement)
    assert isinstance(slow, Measurement)
    assert slow.seconds_per_minibatch == pytest.approx(2 * even.seconds_per_minibatch)


def test_what_does_not_fit_together_is_refused() -> None:
    with pytest.raises(InvalidCluster, match="2 speeds given for 3 accelerators"):
        SimulatedCluster(GRAPH, PROFILE, cluster_of(3), speeds=[1, 1])
    with pytest.raises(InvalidCluster, match="above 0"):
        SimulatedCluster(GRAPH, PROFILE, cluster_of(2), speeds=[1, 0])
    other = PROFILE.model_copy(update={"graph_fingerprint": "0"})
    with pytest.raises(InvalidInput, match="profile this model again"):
        SimulatedCluster(GRAPH, other, cluster_of(2))
    short = PROFILE.model_copy(update={"operators": PROFILE.operators[:2]})
    with pytest.raises(InvalidInput, match="has 2 operators, but its graph has 3"):
        SimulatedCluster(GRAPH, short, cluster_of(2))


@given(st.data())
@settings(deadline=None)
def test_predictions_name_the_part_that_rules(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    profile = data.draw(profiles(graph))
    placement = data.draw(placements(graph, accelerators=4))
    prediction = predict(graph, profile, cluster_of(4, bandwidth=3.0), placement)
    parts = [
        *(stage.compute_seconds + stage.update_seconds for stage in prediction.stages),
        *(stage.all_reduce_seconds for stage in prediction.stages),
        *(link.seconds for link in prediction.links),
    ]
    assert prediction.seconds_per_minibatch == max(parts)
    edges = placement.pipeline(graph).edges
    assert {(x.source_stage, x.target_stage) for x in prediction.links} == {
        (edge.source, edge.target) for edge in edges
    }
