"""In-flight depth on links of every speed: what deeper pipelines give, and which is enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.analytic_model import predict
from drlpp.costs.memory import MemoryModel
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method
from drlpp.simulator import Depth, simulate, simulate_depths, smallest_depth
from drlpp.specs.cluster import Cluster, Link, local_cluster
from tests.support.strategies.graphs import cluster_of

times = st.floats(0.1, 6.0)


def chain_workload(
    forward: Sequence[float], backward: Sequence[float], messages: Sequence[float]
) -> Workload:
    """One operator for each stage; a message takes its bytes on a link of 1 byte per second."""
    count = len(forward)
    return Workload(
        model="chain",
        names=tuple(f"op{i}" for i in range(count)),
        forward_seconds=numpy.array(forward),
        backward_seconds=numpy.array(backward),
        update_seconds=numpy.zeros(count),
        parameter_bytes=numpy.ones(count),
        kept_bytes=numpy.ones(count),
        edges=tuple((i, i + 1) for i in range(count - 1)),
        transfers=tuple(Transfer((i, i + 1), bytes_, bytes_) for i, bytes_ in enumerate(messages)),
    )


def straight(stages: int) -> Placement:
    return Placement.from_assignment(range(stages), range(stages))


@st.composite
def straight_pipelines(draw: st.DrawFn) -> tuple[Workload, Cluster]:
    stages = draw(st.integers(2, 4))

    def several(values: st.SearchStrategy[float], count: int) -> list[float]:
        return draw(st.lists(values, min_size=count, max_size=count))

    workload = chain_workload(
        several(times, stages), several(times, stages), several(st.floats(0, 9), stages - 1)
    )
    latency = draw(st.sampled_from([0.0, 0.0, 0.5, 4.0]))
    return workload, local_cluster(
        stages, Link(bandwidth_bytes_per_second=1.0, latency_seconds=latency)
    )


@given(straight_pipelines(), st.integers(1, 4))
def test_a_deeper_straight_pipeline_is_never_slower_than_noam(
    given_: tuple[Workload, Cluster], per_link: int
) -> None:
    workload, cluster = given_
    placement = straight(len(workload))
    noam, deeper = (
        simulate(workload, cluster, placement, Method(in_flight_per_link=n)) for n in (0, per_link)
    )
    assert deeper.seconds_per_minibatch <= noam.seconds_per_minibatch * (1 + 1e-9)
    assert deeper.plan.program.in_flight == deeper.method.in_flight(deeper.pipeline)


@given(straight_pipelines(), st.integers(0, 3), st.sampled_from(["pipeoptim", "stash"]))
@settings(max_examples=30)
def test_the_simulators_memory_is_that_of_the_prediction(
    given_: tuple[Workload, Cluster], per_link: int, policy: str
) -> None:
    workload, cluster = given_
    placement = straight(len(workload))
    method = Method.model_validate({"policy": policy, "in_flight_per_link": per_link})
    played = simulate(workload, cluster, placement, method)
    predicted = predict(workload, cluster, placement, memory=MemoryModel.with_state(method))
    assert played.memory_bytes == pytest.approx([s.memory_bytes for s in predicted.stages])
    assert [s.in_flight for s in predicted.stages] == list(method.in_flight(played.pipeline))


def test_two_more_for_a_link_as_slow_as_the_stages_keep_it_busy() -> None:
    """A round trip of 4 T in an interval of T takes four: NOAM's two, and two for the link."""
    workload = chain_workload([1, 1, 1], [2, 2, 2], [3, 3])
    depths = simulate_depths(workload, cluster_of(3), straight(3), Method())
    assert [depth.in_flight for depth in depths[:3]] == [(3, 2, 1), (5, 3, 1), (7, 4, 1)]
    assert depths[2].seconds_per_minibatch == pytest.approx(6.0, rel=0.01), (
        "the second stage sends 3 s forward and 3 s back"
    )
    assert depths[0].seconds_per_minibatch == pytest.approx(7.0, rel=0.01)
    assert smallest_depth(depths).per_link == 1
    fast = simulate_depths(workload, cluster_of(3, bandwidth=1e6), straight(3), Method())
    assert smallest_depth(fast).per_link == 0


def depth(per_link: int, seconds: float, *, possible: bool = True) -> Depth:
    return Depth(per_link, (), seconds, 0.0, None if possible else "it is too deep")


def test_the_smallest_depth_within_a_hundredth_of_the_fastest() -> None:
    assert smallest_depth([depth(0, 2.0), depth(1, 1.005), depth(2, 1.0)]).per_link == 1
    assert smallest_depth([depth(0, 2.0), depth(1, 1.02), depth(2, 1.0)]).per_link == 2
    assert smallest_depth([depth(0, 1.0), depth(1, 1.0)]).per_link == 0
    impossible = depth(2, 1.0, possible=False)
    assert smallest_depth([depth(0, 2.0), depth(1, 1.5), impossible]).per_link == 1
    with pytest.raises(InvalidInput, match=r"no in-flight depth .* 2 for each .* it is too deep"):
        smallest_depth([impossible])


def test_a_depth_that_does_not_fit_into_memory_is_not_possible() -> None:
    workload = chain_workload([1, 1], [2, 2], [3])
    slow = Link(bandwidth_bytes_per_second=1.0)
    # Four copies of the weights, the messages, and a byte for each minibatch in flight.
    cluster = local_cluster(2, slow, memory_bytes=4 + 6 + 3)
    depths = simulate_depths(workload, cluster, straight(2), Method())
    assert [d.memory_bytes for d in depths] == pytest.approx([12, 13, 14, 15, 16])
    assert [d.possible for d in depths] == [True, True, False, False, False]
    assert depths[3].obstacle == "an accelerator misses 2 bytes of memory"
    assert smallest_depth(depths).per_link == 1


def test_a_depth_that_2bw_cannot_hold_is_not_possible() -> None:
    workload = chain_workload([1, 1], [2, 2], [3])
    depths = simulate_depths(
        workload, cluster_of(2), straight(2), Method(policy="2bw", accumulate=3)
    )
    assert [d.possible for d in depths] == [True, True, False, False, False]
    assert "as are in flight, 4 with this placement; accumulate is 3" in str(depths[2].obstacle)


def test_a_schedule_that_flushes_has_no_depth() -> None:
    workload = chain_workload([1, 1], [2, 2], [3])
    flushes = Method(schedule="gpipe", policy="sync", microbatches=4)
    with pytest.raises(InvalidInput, match=r"schedule gpipe empties .* no in-flight depth"):
        simulate_depths(workload, cluster_of(2), straight(2), flushes)
