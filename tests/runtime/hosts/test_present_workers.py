"""A session does without workers that were given up, until their host has returned."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import HostLost, InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.protocol import WorkerSpec
from tests.support.losable_hosts import LosableHost, LosableHosts
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


class _Moving(LosableHost):
    """Returns as another machine, with one core."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.posts: list[WorkerSpec] = []

    def rejoin(self) -> None:
        self.machine, self.cores = "another", self.cores[:1]

    def start(self, posts: Sequence[WorkerSpec]) -> None:
        super().start(posts)
        self.posts = list(posts)


def test_emulated_accelerators_have_the_cores_of_where_their_host_returns(
    captured: CapturedModel,
) -> None:
    hosts = LosableHosts([1, 2], _Moving)
    with (
        hosts.used(),
        ClusterSession(captured, workers=3, speeds=(0.25, 0.25, 0.25)) as session,
    ):
        whole, moving = in_a_row(captured.graph, 0, 1, 2), hosts.hosts[1]
        session.deploy(whole)
        first, last = moving.cores[0], moving.cores[-1]
        assert [post.core for post in moving.posts] == [last, last]
        moving.lose()
        with pytest.raises(HostLost) as lost:
            session.deploy(whole)
        session.give_up(lost.value.workers)
        moving.return_()
        assert session.take_back() == (1, 2)
        session.deploy(whole)
        assert [post.core for post in moving.posts] == [first, first]


def test_a_profile_needs_all_workers(session: ClusterSession, hosts: LosableHosts) -> None:
    hosts.hosts[0].lose()
    with pytest.raises(HostLost) as lost:
        session.profile(repeats=2)
    session.give_up(lost.value.workers)
    with pytest.raises(InvalidInput, match=r"on worker 0, which was given up"):
        session.profile(repeats=2)
    hosts.hosts[0].return_()
    assert session.take_back() == (0,)
    assert session.profile(repeats=2)[1].host_names == ("host-0", "host-1")
