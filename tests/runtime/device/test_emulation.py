"""How an emulated accelerator rests, and moments of a device that works behind the process."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from drlpp.errors import InvalidInput
from drlpp.runtime.device import clocks, emulation
from drlpp.runtime.device.clocks import StreamClock
from drlpp.runtime.device.emulation import (
    MOST_LOAD,
    EmulatedAccelerator,
    checked_speeds,
    cores_for,
    fitting_speeds,
)


class Clock:
    """Seconds that pass, and those of the processor, as the test says."""

    now = 0.0
    used = 0.0
    wakes_late = 0.0

    def compute(self, seconds: float, *, delayed: float = 0.0) -> None:
        """Use the processor, which others use for ``delayed`` seconds."""
        self.now += seconds + delayed
        self.used += seconds

    def wait(self, seconds: float) -> None:
        """For a message."""
        self.now += seconds

    def perf_counter(self) -> float:
        """As in ``time``."""
        return self.now

    def thread_time(self) -> float:
        """As in ``time``."""
        return self.used

    def sleep(self, seconds: float) -> None:
        """As ``time.sleep``."""
        self.now += seconds + self.wakes_late


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(emulation, "time", clock)
    return clock


def compute(
    accelerator: EmulatedAccelerator, clock: Clock, seconds: float, delayed: float = 0.0
) -> float:
    """Compute and rest; returns when that ended."""
    accelerator.begin()
    clock.compute(seconds, delayed=delayed)
    accelerator.rest()
    return clock.now


def test_computing_takes_as_long_as_the_speed_says(clock: Clock) -> None:
    accelerator = EmulatedAccelerator(0.25)
    assert compute(accelerator, clock, 1) == pytest.approx(4)
    clock.wait(3)
    assert compute(accelerator, clock, 1) == pytest.approx(11)
    assert compute(accelerator, clock, 2) == pytest.approx(19)


def test_delays_of_the_emulation_are_made_up_for(clock: Clock) -> None:
    accelerator = EmulatedAccelerator(0.5)
    assert compute(accelerator, clock, 1, delayed=3) == pytest.approx(4), "2 late"
    assert compute(accelerator, clock, 1) == pytest.approx(5), "cannot be faster than that"
    assert compute(accelerator, clock, 1) == pytest.approx(6)
    assert compute(accelerator, clock, 1) == pytest.approx(8), "nothing is left to make up for"


def test_what_was_waited_for_makes_up_for_delays_first(clock: Clock) -> None:
    accelerator = EmulatedAccelerator(0.5)
    compute(accelerator, clock, 1, delayed=3)
    clock.wait(1.5)
    # 2 late, of which half a second is left.
    assert compute(accelerator, clock, 1) == pytest.approx(5.5 + 1.5)
    clock.compute(1)
    # Work between two actions is no waiting, and is not made up for either.
    assert compute(accelerator, clock, 1) == pytest.approx(8 + 2)


@pytest.mark.parametrize(
    ("relative", "cores", "fitting"),
    [
        ((1, 1, 0.5, 0.5), 2, (0.6, 0.6, 0.3, 0.3)),
        ((2, 2, 1, 1), 1, (0.3, 0.3, 0.15, 0.15)),
        ((1, 0.5), 4, (0.9, 0.45)),
        ((1, 1, 1), 2, (0.45, 0.45, 0.45)),
    ],
)
def test_the_largest_speeds_that_the_cores_can_do(
    relative: tuple[float, ...], cores: int, fitting: tuple[float, ...]
) -> None:
    assert fitting_speeds(relative, range(cores)) == pytest.approx(fitting)


@example([1.0, 1.0, 0.814453125], 1)
@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=8), st.integers(1, 8))
def test_every_worker_has_a_core_and_its_share(relative: list[float], cores: int) -> None:
    speeds = fitting_speeds(relative, range(cores))
    assert None not in cores_for(speeds, [("here", range(cores))] * len(speeds))
    assert max(speeds) <= MOST_LOAD
    for speed, wanted in zip(speeds, relative, strict=True):
        assert speed / max(speeds) == pytest.approx(wanted / max(relative), rel=0.01)


def test_emulated_accelerators_share_the_cores_of_their_machine() -> None:
    machines = [("one", (0, 1)), ("one", (0, 1)), ("one", (0, 1)), ("other", (0,))]
    assert cores_for((0.5, 0.5, 0.4, 0.5), machines) == [1, 0, 1, 0]
    assert cores_for((1.0,) * 4, machines) == [None] * 4


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: checked_speeds((1.0,), 2), "one for each of 2 workers"),
        (lambda: checked_speeds((1.0, 0.0), 2), "one for each of 2 workers"),
        (lambda: checked_speeds((1.0, 2.0), 2), "one for each of 2 workers"),
        (lambda: fitting_speeds([1.0] * 200, [0]), "1 cores cannot emulate 200 accelerators"),
    ],
)
def test_what_cannot_be_emulated_is_refused(call: Callable[[], object], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        call()


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
    clock.mark()
    stream.milliseconds += 250
    clock.mark()
    assert stream.waited == 1
    assert clock.moments() == [100.0, 100.25]
    assert stream.waited == 2
    stream.milliseconds += 750
    clock.mark()
    assert clock.moments() == [100.0, 100.25, 101.0]


def test_microseconds_are_told_hours_after_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clocks.time, "perf_counter", lambda: 0.0)
    stream = Stream()
    clock = StreamClock(lambda: FakeEvent(stream))
    for _ in range(3 * clocks._MOST_PENDING):
        clock.mark()
        stream.milliseconds += 0.004
        clock.mark()
        stream.milliseconds += 2000
        assert len(clock._pending) <= clocks._MOST_PENDING
    # Six hours later half of the marks have been turned into seconds on the way.
    assert stream.milliseconds > 6 * 3600e3
    begins, ends = clock.moments()[::2], clock.moments()[1::2]
    passes = zip(begins, ends, strict=True)
    assert all(end - begin == pytest.approx(4e-6, rel=1e-3) for begin, end in passes)
    assert begins[-1] == pytest.approx(2.000004 * (len(begins) - 1), rel=1e-7)
