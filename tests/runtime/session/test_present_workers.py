"""A session does without workers that were given up, until their host has returned."""

from collections.abc import Iterator

import pytest

from benchmarks.host_loss.losable_hosts import LosableHosts
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import HostLost, InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession
from tests.support.training.pipelines import in_a_row


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron"))


@pytest.fixture
def hosts() -> LosableHosts:
    return LosableHosts([1, 2])


@pytest.fixture
def session(captured: CapturedModel, hosts: LosableHosts) -> Iterator[ClusterSession]:
    with hosts.used(), ClusterSession(captured, workers=3) as session:
        yield session


def test_a_lost_host_ends_everything_until_its_workers_are_given_up(
    captured: CapturedModel, session: ClusterSession, hosts: LosableHosts
) -> None:
    whole, alone = in_a_row(captured.graph, 0, 1, 2), in_a_row(captured.graph, 0)
    session.deploy(whole)
    hosts.hosts[1].lose()
    for _ in range(2):
        with pytest.raises(HostLost) as lost:
            session.deploy(alone)
        assert lost.value.workers == {1, 2}
    session.give_up(lost.value.workers)
    assert session.present == (0,)
    assert isinstance(session.measure(alone, 4), Measurement)
    with pytest.raises(InvalidInput, match="on worker 1, which was given up; there are workers 0"):
        session.deploy(whole)
    assert session.take_back() == ()

    # What it has missed is sent to it.
    session.use_samples(captured.task.inputs, captured.task.targets)
    hosts.hosts[1].return_()
    assert session.take_back() == (1, 2)
    assert session.present == (0, 1, 2)
    assert isinstance(session.measure(whole, 4), Measurement)


def test_one_worker_of_a_host_is_given_up_alone(
    captured: CapturedModel, session: ClusterSession, hosts: LosableHosts
) -> None:
    session.deploy(in_a_row(captured.graph, 0, 1, 2))
    session.give_up([1])
    two = in_a_row(captured.graph, 0, 1).on([0, 2])
    assert isinstance(session.measure(two, 4), Measurement)
    assert [len(host.process_ids) for host in hosts.hosts] == [1, 1]
