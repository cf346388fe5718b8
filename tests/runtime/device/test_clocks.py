"""Moments of a device that works behind the process."""

from dataclasses import dataclass

import numpy as np
import pytest

from drlpp.runtime.device import clocks
from drlpp.runtime.device.clocks import StreamClock


@dataclass
class Stream:
    """A device whose time passes when a test says so; a process that is far ahead of it."""

    milliseconds: float = 0.0
    waited: int = 0


class FakeEvent:
    """Tells milliseconds in single precision, as CUDA's events do, and none before waiting."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.at: float | None = None

    def record(self) -> None:
        self.at = self._stream.milliseconds

    def synchronize(self) -> None:
        self._stream.waited += 1

    def elapsed_time(self, end: "FakeEvent") -> float:
        assert self._stream.waited, "nobody waited for the device"
        assert self.at is not None
        assert end.at is not None
        return float(np.float32(end.at - self.at))


def test_a_stream_is_timed_without_waiting_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: 100.0)
    stream = Stream(milliseconds=5e6)
    clock = StreamClock(lambda: FakeEvent(stream))
    assert stream.waited == 1
    first = clock.mark()
    stream.milliseconds += 250
    second = clock.mark()
    assert stream.waited == 1
    assert clock.read([(first, second), (second, second)]) == [(100.0, 100.25), (100.25, 100.25)]
    assert stream.waited == 2
    stream.milliseconds += 750
    assert clock.read([(first, clock.mark())]) == [(100.0, 101.0)]


def test_microseconds_are_told_hours_after_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: 0.0)
    stream = Stream()
    clock = StreamClock(lambda: FakeEvent(stream))
    spans = []
    for _ in range(3 * clocks._MOST_PENDING):
        begin = clock.mark()
        stream.milliseconds += 0.004
        spans.append((begin, clock.mark()))
        stream.milliseconds += 2000
        assert len(clock._pending) <= clocks._MOST_PENDING
    # Six hours later half of the marks have been turned into seconds on the way.
    assert stream.milliseconds > 6 * 3600e3
    found = clock.read(spans)
    assert all(end - begin == pytest.approx(4e-6, rel=1e-3) for begin, end in found)
    assert found[-1][0] == pytest.approx(2.000004 * (len(spans) - 1), rel=1e-7)
