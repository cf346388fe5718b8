from __future__ import annotations

import warnings

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib import _pylab_helpers
from matplotlib.figure import Figure

from drlpp.schedule.actions import Action, AllReduce, Backward, Forward, Receive, Send, Update
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.timeline.figure import draw
from drlpp.timeline.timeline import TimedAction, play
from tests.support.strategies.graphs import pipelines


def seconds_of(worker: int, action: Action) -> float:
    assert not isinstance(action, Send)
    return {Forward: 1.0, Backward: 2.0, Receive: 0.25, AllReduce: 0.5, Update: 0.125}[type(action)]


def test_a_message_arrives_its_transfer_after_it_was_sent() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1), 1)
    timed = play(schedule, seconds_of)
    of_last = [(type(t.action), t.start, t.end) for t in timed if t.worker == 1]
    assert of_last == [
        (Receive, 1.25, 1.25),
        (Forward, 1.25, 2.25),
        (Backward, 2.25, 4.25),
        (Send, 4.25, 4.25),
        (Update, 4.25, 4.375),
    ]
    assert next(t for t in timed if t.worker == 0 and t.action == Backward(0)).start == 4.5


def test_an_all_reduce_begins_with_its_last_worker() -> None:
    schedule = build_schedule(Pipeline.straight(3), 3)

    def slower_by_number(worker: int, action: Action) -> float:
        return (worker + 1.0) if isinstance(action, Forward) else seconds_of(worker, action)

    timed = play(schedule, slower_by_number)
    reduces = [t for t in timed if isinstance(t.action, AllReduce)]
    assert [(t.worker, t.start, t.end) for t in reduces] == [(w, 5.0, 5.5) for w in range(3)]


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


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def test_numbers_are_drawn_where_they_fit() -> None:
    wide = [TimedAction(0, Forward(7), 0, 1), TimedAction(0, Backward(123), 1, 2)]
    assert texts(draw(wide)) == ["7", "123"]
    narrow = [*wide, TimedAction(0, Forward(8), 2, 2.01), TimedAction(0, Update(1, 1, 1), 2.01, 9)]
    assert texts(draw(narrow)) == ["7", "123"]
    parts = [TimedAction(0, Forward(7, 0), 0, 1), TimedAction(0, Forward(7, 1), 1, 2)]
    assert texts(draw(parts)) == ["7.0", "7.1"]


def test_a_row_for_each_worker_by_stage() -> None:
    pipeline = Pipeline(stages=((2, 0), (1,)), edges=Pipeline.straight(2, 1).edges)
    timed = play(build_schedule(pipeline, 4), seconds_of)
    figure = draw(timed, "2-1", pipeline)
    axes = figure.axes[0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["stage 0 · worker 2", "stage 0 · worker 0", "stage 1 · worker 1"]
    assert axes.get_title(loc="left") == "2-1"
    assert [label.get_text() for label in figure.legends[0].get_texts()] == [
        "forward",
        "backward",
        "update",
        "all-reduce",
        "waiting",
    ]
    without = draw(timed)
    labels = [label.get_text() for label in without.axes[0].get_yticklabels()]
    assert labels == ["worker 0", "worker 1", "worker 2"]


def test_drawing_touches_nothing_global() -> None:
    before = dict(matplotlib.rcParams)
    draw(play(build_schedule(Pipeline.straight(1, 1), 3), seconds_of)).canvas.draw()
    assert not _pylab_helpers.Gcf.figs
    assert dict(matplotlib.rcParams) == before


@pytest.mark.parametrize("timed", [[], [TimedAction(0, Forward(0), 1.0, 1.0)]])
def test_pictures_of_nothing_can_be_drawn(timed: list[TimedAction]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draw(timed).canvas.draw()
