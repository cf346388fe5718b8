"""Single messages are timed, one way at a time."""

from typing import Any

import pytest
import torch

from drlpp.runtime.comm import link_timing as links
from drlpp.runtime.comm.link_timing import exchange
from drlpp.runtime.comm.transport import Links
from drlpp.runtime.ipc.protocol import RunResult, TimeLink
from drlpp.runtime.session.measuring import largest_messages
from drlpp.schedule.pipeline import Pipeline


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
