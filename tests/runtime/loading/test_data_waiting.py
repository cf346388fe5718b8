"""A worker that waits for data does not compute: it is part of its bubble."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from drlpp.runtime.device.clocks import ProcessorClock
from drlpp.runtime.worker.executor import Executor
from drlpp.schedule.actions import Forward
from drlpp.schedule.timeline import WAITING, TimedAction, spans_of, time_use


def test_waiting_for_a_minibatch_is_no_part_of_its_forward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Data take 5 s, a forward 2 s."""
    now = 0.0

    def passes(seconds: float) -> None:
        nonlocal now
        now += seconds

    clock = SimpleNamespace(perf_counter=lambda: now)
    monkeypatch.setattr("drlpp.runtime.device.clocks.time", clock)
    runner = SimpleNamespace(
        program=SimpleNamespace(receives={}, sends={}),
        wait_for=lambda minibatch: passes(5),
        forward=lambda part, received: passes(2),
    )
    mailbox = SimpleNamespace(drain=lambda: None)
    executor = Executor(
        runners=[cast(Any, runner)],
        mailbox=cast(Any, mailbox),
        clock=ProcessorClock(),
        on_progress=lambda _: None,
    )
    actions = [Forward(0, 0), Forward(1, 0)]
    times = executor.run(actions)
    assert times == [(5, 7), (12, 14)]
    timeline = [TimedAction(0, a, *t) for a, t in zip(actions, times, strict=True)]
    (use,) = time_use(spans_of(timeline), 5, 14)
    assert use.seconds[Forward.span] == 4
    assert use.seconds[WAITING] == 5
