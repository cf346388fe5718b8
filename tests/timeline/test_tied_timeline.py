"""Stages that share parameters do not wait for each other in steady state."""

from dataclasses import replace

import pytest

from drlpp.schedule.actions import TIED_PAYLOADS, Action, Backward, Forward, Receive
from drlpp.schedule.analysis.window import completion_times
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.timeline.timeline import play

FORWARD, BACKWARD, TIED_MESSAGE = 1.0, 2.0, 0.7


def seconds_of(worker: int, action: Action) -> float:
    match action:
        case Forward():
            return FORWARD
        case Backward():
            return BACKWARD
        case Receive(message) if message.payload in TIED_PAYLOADS:
            return TIED_MESSAGE
    return 0.0


@pytest.mark.parametrize("stages", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("per_link", [0, 1])
def test_asynchronous_stages_do_not_wait(stages: int, per_link: int) -> None:
    pipeline = replace(Pipeline.straight(*[1] * stages), ties=((0, stages - 1),))
    schedule = Method(in_flight_per_link=per_link).schedule_for(pipeline, 60)
    ends: dict[int, list[float]] = {worker: [] for worker in schedule.actions}
    for timed in play(schedule, seconds_of):
        ends[timed.worker].append(timed.end)
    complete = completion_times(schedule, ends)
    assert (complete[40] - complete[30]) / 10 == pytest.approx(FORWARD + BACKWARD)
