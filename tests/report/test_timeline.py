"""When every action happens, and where the time of workers goes."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.cli.timelines import TimelineRun
from drlpp.report.chrome_trace import trace_of
from drlpp.schedule.actions import (
    TIED_PAYLOADS,
    Action,
    AllReduce,
    Backward,
    Forward,
    Receive,
    Send,
    Update,
)
from drlpp.schedule.analysis.window import Window, completion_times
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.schedule.timeline import (
    KINDS,
    WAITING,
    TimedAction,
    play,
    spans_of,
    time_use,
)
from tests.support.strategies.graphs import pipelines
from tests.support.traces import checked

SECONDS = {Forward: 1.0, Backward: 2.0, Receive: 0.25, AllReduce: 0.5, Update: 0.125}


def test_every_moment_has_its_use() -> None:
    timeline = [
        TimedAction(0, Forward(3), 1.0, 2.0),
        TimedAction(0, Send(None, 1), 2.0, 2.5),  # type: ignore[arg-type]
        TimedAction(0, Receive(None, 1), 2.5, 3.0),  # type: ignore[arg-type]
        TimedAction(0, Update(1, 1, 1), 3.5, 4.0),
    ]
    assert [(span.kind, span.start, span.end, span.number) for span in spans_of(timeline)] == [
        (Forward.span, 1.0, 2.0, "3"),
        (Send.span, 2.0, 2.5, ""),
        (WAITING, 2.5, 3.5, ""),
        (Update.span, 3.5, 4.0, ""),
    ]
    (use,) = time_use(spans_of(timeline), 1.5, 3.75)
    assert use.seconds == {
        **dict.fromkeys(KINDS, 0.0),
        Forward.span: 0.5,
        Send.span: 0.5,
        WAITING: 1.0,
        Update.span: 0.25,
    }
    assert use.utilisation == pytest.approx(0.75 / 2.25)
    assert use.bubble == pytest.approx(1.5 / 2.25)


@given(pipelines(), st.integers(1, 8), st.sampled_from(["1f1b", "gpipe", "1f1b-flush"]))
def test_spans_are_the_whole_timeline(pipeline: Pipeline, minibatches: int, kind: str) -> None:
    policy = "pipeoptim" if kind == "1f1b" else "sync"
    method = Method.model_validate({"schedule": kind, "policy": policy})
    minibatches = max(minibatches, method.minibatches_together(pipeline))
    window = Window.plan(pipeline, minibatches, method)
    schedule = method.schedule_for(pipeline, window.minibatches)

    def seconds(worker: int, action: Action) -> float:
        return SECONDS[type(action)] * (1 + 0.5 * worker)

    timeline = play(schedule, seconds)
    spans = spans_of(timeline)
    last = max(timed.end for timed in timeline)
    kinds = {kind.span: kind for kind in (Forward, Backward, Update, AllReduce)}
    uses = time_use(spans, 0.0, last)
    assert [use.worker for use in uses] == list(pipeline.workers)
    for use in uses:
        mine = [span for span in spans if span.worker == use.worker]
        assert mine[0].start == 0
        assert mine[-1].end == last
        assert all(one.end == other.start for one, other in pairwise(mine))
        for span_kind, action in kinds.items():
            total = sum(
                timed.end - timed.start
                for timed in timeline
                if timed.worker == use.worker and isinstance(timed.action, action)
            )
            assert use.seconds[span_kind] == pytest.approx(total)
        assert use.utilisation + use.bubble == pytest.approx(1)

    hosts = dict.fromkeys(pipeline.workers, "localhost")
    recording = TimelineRun("", "s", timeline, schedule, window, hosts)
    trace = trace_of(timeline, pipeline, host_of=hosts, window=recording.bounds)
    found = checked(trace)
    for use in time_use(spans, *recording.bounds):
        for span_kind in KINDS:
            seconds_of_kind = found[use.worker][span_kind.label]
            assert seconds_of_kind == pytest.approx(use.seconds[span_kind], abs=1e-6)


def seconds_of(worker: int, action: Action) -> float:
    assert not isinstance(action, Send)
    return SECONDS[type(action)]


@given(pipelines(), st.integers(1, 8), st.sampled_from(["1f1b", "gpipe"]))
def test_play_performs_every_list_in_order_and_keeps_dependencies(
    pipeline: Pipeline, minibatches: int, kind: str
) -> None:
    schedule = build_schedule(pipeline, minibatches, "gpipe" if kind == "gpipe" else "1f1b")
    timed = play(schedule, seconds_of)
    sent = {(t.action.message, t.action.to): t.end for t in timed if isinstance(t.action, Send)}
    for worker, actions in schedule.actions.items():
        mine = [t for t in timed if t.worker == worker]
        assert tuple(t.action for t in mine) == actions
        clock = 0.0
        for t in mine:
            assert clock <= t.start <= t.end
            free = clock
            clock = t.end
            if isinstance(t.action, Receive):
                assert t.end == max(free, sent[t.action.message, worker] + 0.25)
            elif isinstance(t.action, Forward | Backward | Update | Send):
                # As early as it can: only messages and other replicas make a worker wait.
                assert t.start == free


def tied_seconds(worker: int, action: Action) -> float:
    match action:
        case Forward():
            return 1.0
        case Backward():
            return 2.0
        case Receive(message) if message.payload in TIED_PAYLOADS:
            return 0.7
    return 0.0


@pytest.mark.parametrize("stages", [2, 4, 8])
@pytest.mark.parametrize("per_link", [0, 1])
def test_asynchronous_stages_do_not_wait(stages: int, per_link: int) -> None:
    pipeline = replace(Pipeline.straight(*[1] * stages), ties=((0, stages - 1),))
    schedule = Method(in_flight_per_link=per_link).schedule_for(pipeline, 60)
    ends: dict[int, list[float]] = {worker: [] for worker in schedule.actions}
    for timed in play(schedule, tied_seconds):
        ends[timed.worker].append(timed.end)
    complete = completion_times(schedule, ends)
    assert (complete[40] - complete[30]) / 10 == pytest.approx(3.0)
