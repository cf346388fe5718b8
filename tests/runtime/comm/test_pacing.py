"""Links: messages are timed one way at a time, and emulated ones take as long as they should."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from drlpp.capturing.capture import capture
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement, Stage
from drlpp.runtime import ClusterSession
from drlpp.runtime.comm import link_timing as links
from drlpp.runtime.comm.link_timing import exchange
from drlpp.runtime.comm.pacing import Pace
from drlpp.runtime.comm.transport import Links
from drlpp.runtime.ipc.protocol import RunResult, TimeLink
from drlpp.runtime.session.measuring import largest_messages
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.pipeline import Pipeline
from drlpp.specs.cluster import Cluster, Host, Link, local_cluster
from tests.support.models.small import perceptron

FAST = Link(bandwidth_bytes_per_second=1e12)
SLOW = Link(bandwidth_bytes_per_second=1e4, latency_seconds=0.01)
MINIBATCHES = 8
SYNC = choose_method("sync", {"schedule": "1f1b"})


@pytest.fixture(scope="module")
def usual() -> Iterator[ClusterSession]:
    with ClusterSession(capture(perceptron()), 2) as live:
        yield live


@pytest.fixture(scope="module", params=[FAST, SLOW], ids=["fast", "slow"])
def session(request: pytest.FixtureRequest, usual: ClusterSession) -> Iterator[ClusterSession]:
    links = local_cluster(2, request.param)
    with ClusterSession(usual.captured, 2, links=links) as live:
        yield live


def test_ports_send_and_receive_one_after_the_other() -> None:
    """Two messages of 0.1 s each; on the other side another's arrives in between."""
    pace = Pace({1: SLOW, 2: SLOW})
    begin = time.perf_counter()
    left, arrival = pace.send(1000, 1)
    assert left == pytest.approx(begin + 0.1, abs=0.01)
    assert arrival == pytest.approx(left + SLOW.latency_seconds)
    assert pace.send(1000, 2)[0] == pytest.approx(left + 0.1, abs=1e-6)
    assert pace.receive(1000, 1, 5.0) == 5.0
    assert pace.receive(1000, 2, 5.01) == pytest.approx(5.1)
    # Two steps of half of the bytes each, after what the ports still do.
    begun = begin + 10
    assert pace.sum(1000, [1], begun) == pytest.approx(begun + 2 * (0.05 + 0.01))
    # Links of another kind have ports of their own.
    hosts = Pace({1: SLOW, 2: FAST})
    hosts.send(10_000, 1)
    assert hosts.send(1000, 2)[0] < time.perf_counter() + 0.1


def test_workers_take_as_long_as_their_links_and_compute_the_same(
    session: ClusterSession, usual: ClusterSession
) -> None:
    """Lower bounds, since nothing is an upper one on a machine that others use."""
    operators = tuple(range(len(session.graph)))
    halves = Placement(
        stages=(
            Stage(operators=operators[:6], accelerators=(0,)),
            Stage(operators=operators[6:], accelerators=(1,)),
        )
    )
    replicas = Placement(stages=(Stage(operators=operators, accelerators=(0, 1)),))
    assert session.links is not None
    link = session.links.link(0, 1)
    for placement, method in ((halves, Method()), (replicas, SYNC)):
        _, expected = usual.run(usual.deploy(placement, method), MINIBATCHES)
        deployment = session.deploy(placement, method)
        begin = time.perf_counter()
        _, found = session.run(deployment, MINIBATCHES)
        took = time.perf_counter() - begin
        assert [found[w].losses for w in (0, 1)] == [expected[w].losses for w in (0, 1)]
        if placement is halves:
            each = max(max(result.message_bytes.values()) for result in found.values())
            least = link.seconds(each) * (MINIBATCHES - 1)
        else:
            least = 2 * link.seconds(found[0].bucket_bytes / 2) * (MINIBATCHES // 2 - 1)
        assert least < took
        if link == SLOW:
            assert least > 0.1


@pytest.mark.parametrize("session", [FAST], ids=["fast"], indirect=True)
def test_the_cluster_is_the_emulated_one(
    session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("drlpp.runtime.session.profiling.run_short", lambda *_: {})
    assert session.links is not None
    found = session.profile(repeats=1)[1]
    assert (found.links_from(0), found.speeds) == (session.links.links_from(0), (1.0, 1.0))


def test_links_are_of_as_many_accelerators_of_this_machine() -> None:
    three = Cluster(
        hosts=(Host(name="a", accelerators=1), Host(name="b", count=2, accelerators=1)),
        within_host=FAST,
        between_hosts=SLOW,
    )
    assert three.links_from(0) == {1: SLOW, 2: SLOW}
    with pytest.raises(InvalidInput, match="3 accelerators, for 2 workers"):
        ClusterSession(perceptron(), 2, links=three)
    with pytest.raises(InvalidInput, match="this machine alone"):
        ClusterSession(perceptron(), 3, links=three, cluster="auto")


def test_ways_have_an_order_that_does_not_depend_on_answers() -> None:
    def result(to: dict[int, int], bucket: int = 0) -> RunResult:
        return RunResult([], {}, {}, 0, 0, message_bytes=to, bucket_bytes=bucket)

    pipeline = Pipeline.straight(2, 1)
    results = {2: result({1: 5, 0: 7}), 1: result({2: 3}, 9), 0: result({2: 3}, 9)}
    ways = [((0, 2), 3), ((1, 2), 3), ((2, 0), 7), ((2, 1), 5), ((0, 1), 5), ((1, 0), 5)]
    assert largest_messages(pipeline, results) == ways


class SlowLinks(Links):
    """A link that answers at once, but takes ``seconds_per_byte`` on the way there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_byte: float) -> None:
        nothing: Any = None
        super().__init__(0, nothing, (), torch.device("cpu"))
        self.now = 0.0
        self.seconds_per_byte = seconds_per_byte
        self.sent: list[tuple[int, bool]] = []
        monkeypatch.setattr(links.time, "perf_counter", lambda: self.now)

    def _start_send(self, tensor: torch.Tensor, receiver: int) -> Any:
        self.sent.append((tensor.numel(), bool(tensor[0])))
        self.now += tensor.numel() * self.seconds_per_byte
        return self

    def _start_receive(self, tensor: torch.Tensor, sender: int) -> Any:
        tensor.fill_(self.sent[-1][1])
        self.now += self.seconds_per_byte
        return self

    def wait(self) -> None:
        """Everything has arrived."""

    def close(self) -> None:
        """Nothing is open."""


def test_the_way_back_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowLinks(monkeypatch, seconds_per_byte=1e-4)
    times = exchange(slow, 0, TimeLink(0, 1, (100,), 3))
    assert times == {100: pytest.approx(100 * 1e-4)}
    # One warms up; the last of every size says that none follows.
    assert slow.sent == [(1, True)] * 3 + [(1, False)] + [(100, True)] * 3 + [(100, False)]


def test_on_a_slow_link_two_messages_have_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowLinks(monkeypatch, seconds_per_byte=1e-3)
    times = exchange(slow, 0, TimeLink(0, 1, (5000,), 3))
    assert times == {5000: pytest.approx(5.0)}
    assert slow.sent[-2:] == [(5000, True), (5000, False)]
    assert sum(size == 5000 for size, _ in slow.sent) == 2
