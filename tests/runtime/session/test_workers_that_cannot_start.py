"""A worker that ends whenever it is started is no placement's failure."""

from collections.abc import Iterator
from itertools import cycle

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import CannotStart
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession
from tests.support.losable_hosts import LosableHosts
from tests.support.training.failing_host import FailingHost
from tests.support.training.pipelines import in_a_row


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron"))


@pytest.fixture
def hosts() -> LosableHosts:
    return LosableHosts([3], FailingHost)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def session(
    captured: CapturedModel, hosts: LosableHosts, notes: list[str]
) -> Iterator[ClusterSession]:
    with hosts.used(), ClusterSession(captured, workers=3, note=notes.append) as session:
        yield session


def test_it_is_given_up_and_the_others_are_measured_on(
    captured: CapturedModel, session: ClusterSession, hosts: LosableHosts
) -> None:
    hosts.hosts[0].failures = 1000
    with pytest.raises(CannotStart, match=r"worker 2 was killed .* whenever it is started") as lost:
        session.measure(in_a_row(captured.graph, 0, 1), 4)
    assert lost.value.workers == {2}
    session.give_up(lost.value.workers)
    assert isinstance(session.measure(in_a_row(captured.graph, 0, 1), 4), Measurement)


def test_once_it_is_started_again(
    captured: CapturedModel, session: ClusterSession, hosts: LosableHosts, notes: list[str]
) -> None:
    hosts.hosts[0].failures = 1
    assert isinstance(session.measure(in_a_row(captured.graph, 0, 1), 4), Measurement)
    (note,) = notes
    assert note.endswith("when it was started; it is started again")


def test_several_that_end_in_turns_are_no_placements_failure(
    captured: CapturedModel, session: ClusterSession, hosts: LosableHosts, notes: list[str]
) -> None:
    """As if all ended at once, and another were noticed first every time."""
    hosts.hosts[0].failing, hosts.hosts[0].failures = cycle([0, 2, 1]), 1000
    with pytest.raises(CannotStart, match=r"worker 0 was killed .* whenever it is started") as lost:
        session.measure(in_a_row(captured.graph, 0, 1), 4)
    assert lost.value.workers == {0}
    assert [note.split(" was ")[0] for note in notes] == ["worker 0", "worker 2", "worker 1"]
