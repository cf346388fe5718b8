"""Effects of playing a schedule, each against an example worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from drlpp.costs.memory import MemoryModel
from drlpp.costs.placement_rule import predict
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement, Stage
from drlpp.schedule.actions import AllReduce, Pass
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster, simulate
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.simulated_chains import chain, fast_cluster, stages_of
from tests.support.strategies.graphs import cluster_of


def test_the_slowest_stage_sets_the_pace() -> None:
    found = stages_of(chain(6, 3, 3), fast_cluster(3), 1, 1, 1)
    assert found.seconds_per_minibatch == pytest.approx(6)
    assert found.step_seconds == pytest.approx([6] * 30)
    assert found.utilisation == pytest.approx({0: 1, 1: 0.5, 2: 0.5})


def test_the_speed_of_accelerators_and_the_time_of_updates() -> None:
    profile = chain(6, 3, parameter_bytes=2).model_copy(update={"update_seconds_per_byte": 0.5})
    cluster = fast_cluster(2).with_speeds([1, 0.25])
    assert stages_of(profile, cluster, 1, 1).seconds_per_minibatch == pytest.approx((3 + 1) / 0.25)
    # Gradients of two minibatches are collected for an update.
    profile = profile.model_copy(update={"sharing_seconds_per_byte": 1.5})
    found = stages_of(profile, fast_cluster(2), 1, 1, method=Method(accumulate=2))
    assert found.seconds_per_minibatch == pytest.approx(6 + 2 * 1.5 + 1 / 2)


def test_later_replicas_wait_for_whole_rounds() -> None:
    """Played by hand: the replicas sum at 8, 16, 23, 31, 38, 46 … s; at best every 6 s."""
    found = stages_of(chain(3, 6, parameter_bytes=1), fast_cluster(3), 1, 2, minibatches=40)
    sums = [t.end for t in found.timeline if t.worker == 1 and isinstance(t.action, AllReduce)]
    assert sums[:6] == pytest.approx([8, 16, 23, 31, 38, 46])
    assert found.seconds_per_minibatch == pytest.approx(7.5 / 2)
    # Without weights there is nothing to sum, and nobody to wait for.
    free = stages_of(chain(3, 6), fast_cluster(3), 1, 2, minibatches=40)
    assert free.seconds_per_minibatch == pytest.approx(3)


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 1), (3, 4), (4, 8)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b-flush"])
def test_flushing_costs_a_bubble(schedule: str, stages: int, microbatches: int) -> None:
    """(P − 1) / (M + P − 1) of the time."""
    method = Method(schedule=schedule, policy="sync", microbatches=microbatches)
    found = stages_of(chain(*[3] * stages), fast_cluster(stages), *[1] * stages, method=method)
    slots = microbatches + stages - 1
    waiting = [usage.waiting_seconds / found.window_seconds for usage in found.workers]
    assert waiting == pytest.approx([(stages - 1) / slots] * stages)
    assert found.seconds_per_minibatch == pytest.approx(3 / microbatches * slots)


def test_a_half_of_a_backward_takes_the_overhead_of_a_whole_one() -> None:
    """Two stages, two microbatches: F 1, B 2 + 0.5, I and W 1 + 0.5 each."""
    profile = chain(6, 6, parameter_bytes=8).model_copy(update={"backward_overhead_seconds": 0.5})
    method = Method(schedule="zb-h1", policy="sync", microbatches=2)
    found = stages_of(profile, fast_cluster(2), 1, 1, method=method)
    # Stage 1: F 2, I 3.5, F 4.5, I 6, W 7.5, W 9; stage 0: B from 3.5 to 6 and from 6 to 8.5, then
    # the next minibatch, which is not at stage 1 before 9.5.
    assert found.seconds_per_minibatch == pytest.approx(8.5)
    ends = [t.end for t in found.timeline if t.worker == 1 and isinstance(t.action, Pass)]
    assert ends[:6] == [2, 3.5, 4.5, 6, 7.5, 9]


def folded_placement(accelerators: int) -> Placement:
    """An operator for each of two stages on every accelerator."""
    last = 2 * accelerators - 1
    return Placement(
        stages=tuple(
            Stage(operators=(k,), accelerators=(min(k, last - k),)) for k in range(last + 1)
        )
    )


@pytest.mark.parametrize(("accelerators", "microbatches"), [(2, 4), (3, 8), (4, 8)])
def test_two_stages_on_an_accelerator_need_not_wait(accelerators: int, microbatches: int) -> None:
    """Each takes the time of both of its stages, and of their updates."""
    profile = chain(*[3] * 2 * accelerators, parameter_bytes=8)
    profile = profile.model_copy(update={"update_seconds_per_byte": 0.125})
    method = Method(schedule="zb-v", policy="sync", microbatches=microbatches)
    cluster = fast_cluster(accelerators)
    placement = folded_placement(accelerators)
    found = simulate(Workload.of(profile, method), cluster, placement, method)
    assert found.seconds_per_minibatch == pytest.approx(2 * (3 + 1))
    rule = predict(Workload.of(profile, method), cluster, placement)
    assert rule.seconds_per_minibatch == pytest.approx(2 * (3 + 1))
    assert rule.bottleneck == f"compute of stages 0 and {2 * accelerators - 1}"
    assert [usage.stage for usage in found.workers] == list(range(accelerators))


@pytest.mark.parametrize("options", [{"clip_norm": 1.0}, {"precision": "float16"}])
def test_a_norm_on_a_schedule_that_flushes_waits_for_all_stages(options: dict[str, Any]) -> None:
    link = Link(bandwidth_bytes_per_second=4, latency_seconds=10)
    cluster = Cluster(hosts=(Host(name="a", accelerators=2),), within_host=link)
    plain = Method(schedule="gpipe", policy="sync")
    method = Method.model_validate({**plain.model_dump(), **options})
    profile = chain(3, 3)
    clipped = stages_of(profile, cluster, 1, 1, method=method).seconds_per_minibatch
    # Two messages of 4 bytes around the ring.
    without = stages_of(profile, cluster, 1, 1, method=plain).seconds_per_minibatch
    assert clipped == pytest.approx(without + 2 * (10 + 4 / 4))


@pytest.mark.parametrize(
    ("method", "first", "last"),
    [
        # Weights of 100 bytes, gradients and momentum; W_t, but on the last stage; 7 bytes kept for
        # each in flight, 3 and 1; and messages of 5 bytes, two each way. What computing needs, the
        # test adds.
        (Method(), 400 + 3 * 7 + 20, 300 + 7 + 20),
        (Method(policy="stash"), 300 + 200 + 3 * 7 + 20, 300 + 7 + 20),
        # Two microbatches are a minibatch: gradients of the second are added to the first's.
        (Method(schedule="gpipe", policy="sync", microbatches=2), 400 + 7 + 10, 400 + 7 + 10),
        # Three of them in flight, and one older version.
        (Method(microbatches=2), 500 + 3 * 3.5 + 10, 400 + 3.5 + 10),
        (Method(policy="stash", microbatches=2), 400 + 100 + 3 * 3.5 + 10, 400 + 3.5 + 10),
        # Three of four microbatches in flight everywhere, on the last stage all of them between the
        # halves of their backward, with the gradient of its output.
        (
            Method(schedule="zb-h1", policy="sync", microbatches=4),
            400 + (3 * 7 + 20) / 4,
            400 + (3 * (7 + 5) + 20) / 4,
        ),
        # One at a time, and of the others what came in: nothing for the first stage but gradients.
        (Method(recompute=True), 400 + 7 + 2 * 5 + 20, 300 + 7 + 20),
    ],
    ids=[
        *("pipeoptim", "stash", "gpipe", "microbatches", "stash-microbatches", "zb-h1"),
        "recompute",
    ],
)
def test_peak_memory(method: Method, first: float, last: float) -> None:
    profile = chain(3, 3, 3, parameter_bytes=100, output_bytes=5, kept_bytes=7)
    found = stages_of(profile, fast_cluster(3), 1, 1, 1, method=method)
    memory = [usage.peak_memory_bytes for usage in found.workers]
    # A gradient of 5 bytes on the first stage, two on the last, for its operator and for the loss.
    first, last = first + 5 / method.microbatches, last + 10 / method.microbatches
    assert (memory[0], memory[2]) == (round(first), round(last))


def test_a_simulated_cluster_measures() -> None:
    profile = chain(6, 3, 3, parameter_bytes=10)
    simulated = SimulatedCluster(profile, cluster_of(3, bandwidth=100))
    placement = Placement.from_assignment([0, 1, 1], [1, 0, 0])
    outcome = simulated.measure(placement, minibatches=7)
    assert isinstance(outcome, Measurement)
    assert outcome == simulated.measure(placement, minibatches=7)
    assert outcome.minibatches == 8, "whole rounds of two"
    assert [usage.worker for usage in outcome.workers] == [0, 1, 2]
    assert [usage.stage for usage in outcome.workers] == [1, 0, 0]
    with pytest.raises(InvalidPlacement, match="in no stage"):
        simulated.measure(Placement.from_assignment([0, 0], [0]))
    with pytest.raises(InvalidInput, match="policy sync cannot run"):
        simulated.measure(Candidate(placement, Method(policy="sync")))
    flushing = Candidate(placement, Method(schedule="gpipe", policy="sync"))
    assert simulated.measure(flushing, minibatches=7) != outcome
    assert (simulated.graph, simulated.accelerators) == (profile.graph, 3)
    simulated.close()


def test_what_does_not_fit_into_memory_fails() -> None:
    profile = chain(3, 3, parameter_bytes=1000)
    cluster = fast_cluster(2, memory_bytes=4500.0)
    placement = Placement.from_assignment([0, 1], [0, 1])
    assert isinstance(SimulatedCluster(profile, cluster).measure(placement), Measurement)
    memory = MemoryModel(Method(), state_copies=2)
    outcome = SimulatedCluster(profile, cluster, memory=memory).measure(placement)
    assert isinstance(outcome, FailedMeasurement)
    assert outcome.failure == "out of memory"
    assert outcome.reason == ("worker 0 (stage 0) needs 5.0 kB, but its accelerator has 4.5 kB")
