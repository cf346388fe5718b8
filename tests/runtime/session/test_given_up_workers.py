"""A session does without workers that were given up, or that cannot start, until they return."""

from collections.abc import Iterator
from itertools import cycle

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import CannotStart, HostLost, InvalidInput
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession
from tests.support.losable_hosts import FailingHost, LosableHosts
from tests.support.training.pipelines import in_a_row


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
    for call in (lambda: session.deploy(whole), lambda: session.profile(repeats=2)):
        with pytest.raises(InvalidInput, match="on worker 1, which was given up; there are work"):
            call()
    assert session.take_back() == ()

    # What it has missed is sent to it.
    session.use_samples(captured.task.inputs, captured.task.targets)
    hosts.hosts[1].return_()
    assert session.take_back() == (1, 2)
    assert session.present == (0, 1, 2)
    assert isinstance(session.measure(whole, 4), Measurement)
    session.give_up([1])
    two = in_a_row(captured.graph, 0, 1).on([0, 2])
    assert isinstance(session.measure(two, 4), Measurement)
    assert [len(host.process_ids) for host in hosts.hosts] == [1, 1], "one of a host alone"


@pytest.mark.parametrize(
    ("failing", "failures", "given_up"), [([2], 1000, 2), ([2], 1, None), ([0, 2, 1], 1000, 0)]
)
def test_a_worker_that_ends_whenever_it_is_started_is_no_placements_failure(
    captured: CapturedModel, failing: list[int], failures: int, given_up: int | None
) -> None:
    """Also if several end at once, and another is noticed first every time."""
    hosts, notes, placement = LosableHosts([3], FailingHost), [], in_a_row(captured.graph, 0, 1)
    with hosts.used(), ClusterSession(captured, workers=3, note=notes.append) as session:
        hosts.hosts[0].failing, hosts.hosts[0].failures = cycle(failing), failures
        if given_up is not None:
            with pytest.raises(CannotStart, match=r"was killed .* whenever it is started") as lost:
                session.measure(placement, 4)
            assert lost.value.workers == {given_up}
            hosts.hosts[0].failures = 0
            session.give_up(lost.value.workers)
        placement = placement.on([w for w in session.present if w < 3][:2])
        assert isinstance(session.measure(placement, 4), Measurement)
    assert [note.split(" was ")[0] for note in notes] == [f"worker {w}" for w in failing]
    assert all(note.endswith("when it was started; it is started again") for note in notes)
