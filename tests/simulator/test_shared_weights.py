"""Workers that share weights send what the simulator says."""

from collections.abc import Iterator

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.workload import Workload
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster
from tests.support.models.tied import placements
from tests.support.strategies.graphs import profile_of


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.tied:tied"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        yield session


METHODS = [
    Method(policy="stash"),
    Method(policy="pipeoptim", microbatches=2, accumulate=2),
    Method(schedule="1f1b-flush", policy="sync", microbatches=4),
]


@pytest.mark.parametrize("shape", ["straight", "replicated", "branching"])
@pytest.mark.parametrize("method", METHODS, ids=str)
def test_workers_send_as_many_bytes(
    captured: CapturedModel, session: ClusterSession, method: Method, shape: str
) -> None:
    """And a number for each weight, which tells who has a gradient."""
    placement = placements(captured)[shape]
    measured = session.measure(session.plan(placement, method), 12)
    assert isinstance(measured, Measurement)
    workload = Workload.of(profile_of(captured.graph, [1.0] * len(captured.graph)), method)
    cluster = local_cluster(4, Link(bandwidth_bytes_per_second=1e9))
    played = simulate(workload, cluster, placement, method, 12)
    live = {usage.worker: usage.bytes_sent for usage in measured.workers}
    simulated = {usage.worker: usage.bytes_sent for usage in played.workers}
    assert live == pytest.approx(simulated, rel=0.01)
    without = simulate(workload.with_ties_once(), cluster, placement, method, 12)
    tensors = sum(usage.bytes_sent for usage in without.workers)
    assert sum(simulated.values()) > 1.03 * tensors
