"""After a measurement, single messages are timed on the ways that the schedule used."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.runtime.comm import link_timing as links
from drlpp.runtime.comm.link_timing import exchange
from drlpp.runtime.comm.transport import GroupLinks
from drlpp.runtime.ipc.protocol import RunResult, TimeLink
from drlpp.runtime.session.measuring import largest_messages, time_ways
from drlpp.schedule.pipeline import Pipeline

ACTIVATION = 8 * 16 * 4
"""Bytes between two layers of the perceptron: 8 samples, 16 floats."""


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        yield session


def halves(captured: CapturedModel, *stages: int) -> Placement:
    """The model in as many parts as there are stages."""
    operators, parts = len(captured.graph), max(stages) + 1
    return Placement.from_assignment([parts * i // operators for i in range(operators)], stages)


def measured(session: ClusterSession, placement: Placement) -> Measurement:
    outcome = session.measure(placement, minibatches=4)
    assert isinstance(outcome, Measurement), outcome
    return outcome


def test_stages_time_messages_both_ways(captured: CapturedModel, session: ClusterSession) -> None:
    links = measured(session, halves(captured, 1, 0)).links
    assert [(link.sender, link.receiver) for link in links] == [(0, 1), (1, 0)]
    assert [link.bytes_ for link in links] == [ACTIVATION] * 2
    assert all(0 < link.seconds < 5 for link in links)


def test_replicas_time_their_ring(captured: CapturedModel, session: ClusterSession) -> None:
    """1F1B-RR: all replicas of a stage exchange messages with the next; three of them a ring."""
    links = measured(session, halves(captured, 0, 0, 0, 1)).links
    routes = {(link.sender, link.receiver): link.bytes_ for link in links}
    messages = {route for replica in range(3) for route in ((replica, 3), (3, replica))}
    ring = {(0, 1), (1, 2), (2, 0)}
    assert set(routes) == messages | ring
    assert len(links) == len(routes)
    assert {routes[route] for route in messages} == {ACTIVATION}
    # All gradients of a stage this small are one bucket, with a number for every parameter.
    stage = halves(captured, 0, 0, 0, 1).stages[0]
    parameters = sum(captured.graph.operators[op].parameter_bytes for op in stage.operators)
    layers = sum(captured.graph.operators[op].parameter_bytes > 0 for op in stage.operators)
    assert {routes[route] for route in ring} == {-(-(parameters + 2 * layers * 4) // 3)}
    assert all(0 < link.seconds < 5 for link in links)


def test_timing_links_leaves_the_deployment_as_it_was(
    captured: CapturedModel, session: ClusterSession
) -> None:
    deployment = session.deploy(halves(captured, 0, 0, 1))
    for _ in range(2):
        _, results = session.run(deployment, 4)
        assert len(time_ways(session.worker_group, deployment.plan.pipeline, results)) == 6


def test_ways_have_an_order_that_does_not_depend_on_answers() -> None:
    def result(to: dict[int, int], bucket: int = 0) -> RunResult:
        return RunResult([], {}, {}, 0, 0, message_bytes=to, bucket_bytes=bucket)

    pipeline = Pipeline.straight(2, 1)
    results = {2: result({1: 5, 0: 7}), 1: result({2: 3}, 9), 0: result({2: 3}, 9)}
    ways = [((0, 2), 3), ((1, 2), 3), ((2, 0), 7), ((2, 1), 5), ((0, 1), 5), ((1, 0), 5)]
    assert largest_messages(pipeline, results) == ways


class SlowLinks(GroupLinks):
    """A link that answers at once, but takes ``seconds_per_byte`` on the way there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds_per_byte: float) -> None:
        super().__init__(torch.device("cpu"))
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
