"""The orders of 1F1B, 1F1B with a flush, GPipe and evaluation: the papers' figures."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.schedule.actions import Action, Pass, Receive, Send, Update
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from drlpp.schedule.timeline import play
from tests.support.action_text import parse_actions
from tests.support.schedule_texts import computations, pass_time, starts
from tests.support.strategies.graphs import pipelines

FOUR = (1, 1, 1, 1)

# pipedream, figure 4 (the paper counts workers and minibatches from 1); pipeoptim, figures 1b and
# 1c. With microbatches warm-up is NOAM's in microbatches, and replicas take turns by them. Three
# replicas have no part each of a minibatch of two, so their updates are of two minibatches.
ORDERS = """
1f1b on 1-1-1-1, 8 minibatches of 1, worker 0
    F0 F1 F2 F3 B0 U1 F4 B1 U2 F5 B2 U3 F6 B3 U4 F7 B4 U5 B5 U6 B6 U7 B7 U8
1f1b on 1-1-1-1, 8 minibatches of 1, worker 1
    F0 F1 F2 B0 U1 F3 B1 U2 F4 B2 U3 F5 B3 U4 F6 B4 U5 F7 B5 U6 B6 U7 B7 U8
1f1b on 1-1-1-1, 8 minibatches of 1, worker 3
    F0 B0 U1 F1 B1 U2 F2 B2 U3 F3 B3 U4 F4 B4 U5 F5 B5 U6 F6 B6 U7 F7 B7 U8
1f1b on 1-1-1-1, 2 minibatches of 4, worker 0
    F0.0 F0.1 F0.2 F0.3 B0.0 F1.0 B0.1 F1.1 B0.2 F1.2 B0.3 U1x4 F1.3 B1.0 B1.1 B1.2 B1.3 U2x4
1f1b on 1-1-1-1, 2 minibatches of 4, worker 3
    F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 U1x4 F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3 U2x4
1f1b on 2-1, 2 minibatches of 4, worker 1
    F0.1 F0.3 B0.1 F1.1 B0.3 U1x4 F1.3 B1.1 B1.3 U2x4
1f1b on 3-1, 2 minibatches of 2, worker 0
    F0.0 F1.1 B0.0 B1.1 U1x4<2
1f1b on 3-1, 2 minibatches of 2, worker 3
    F0.0 B0.0 F0.1 B0.1 U1x2<1 F1.0 B1.0 F1.1 B1.1 U2x2<2
1f1b-flush on 1-1-1-1, 1 minibatches of 6, worker 0
    F0.0 F0.1 F0.2 F0.3 B0.0 F0.4 B0.1 F0.5 B0.2 B0.3 B0.4 B0.5 U1x6
1f1b-flush on 1-1-1-1, 1 minibatches of 6, worker 2
    F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F0.4 B0.3 F0.5 B0.4 B0.5 U1x6
gpipe on 1-1-1-1, 2 minibatches of 4, worker 2
    F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3 U1x4 F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3 U2x4
gpipe on 1-1-1-1, 3 minibatches of 1, worker 2
    F0 B0 U1 F1 B1 U2 F2 B2 U3
gpipe on 2-1, 2 minibatches of 3, worker 1
    F0.1 B0.1 U1x3 F1.0 F1.2 B1.0 B1.2 U2x3
forward on 2-1, 3 minibatches of 1, worker 0
    F0 F2
"""
_ROW = re.compile(r"(\S+) on (\S+), (\d+) minibatches of (\d+), worker (\d+)\n +(.*)\n")


@pytest.mark.parametrize(
    ("kind", "shape", "count", "parts", "worker", "order"), _ROW.findall(ORDERS)
)
def test_orders(kind: str, shape: str, count: str, parts: str, worker: str, order: str) -> None:
    pipeline = Pipeline.straight(*map(int, shape.split("-")))
    schedule = build_schedule(pipeline, int(count), kind, int(parts))
    assert computations(schedule, int(worker)) == parse_actions(order)


def test_pipedream_figure_8_times() -> None:
    """Passes of the first stage take two units, of the second one: both stages keep pace."""
    schedule = build_schedule(Pipeline.straight(2, 1), 40)
    forward = backward = {0: 2.0, 1: 1.0}
    one = starts(schedule, 0, forward, backward)
    last = starts(schedule, 2, forward, backward)
    # F4 waits for the all-reduce, which B1 joins on the second worker at 8.
    assert one[:4] == [("F0", 0), ("F2", 2), ("B0", 4), ("F4", 8)]
    assert last[:4] == [("F0", 2), ("B0", 3), ("F1", 4), ("B1", 5)]
    steady = [start for name, start in last if name in {"F10", "F30"}]
    assert steady[1] - steady[0] == 20 * 2


@pytest.mark.parametrize("kind", ["gpipe", "1f1b-flush"])
def test_a_flush_costs_the_known_bubble(kind: str) -> None:
    """M microbatches on D stages take (M + D − 1) times a microbatch (forward + backward)."""
    schedule = build_schedule(Pipeline.straight(*FOUR), 3, kind, microbatches=4)
    assert max(timed.end for timed in play(schedule, pass_time)) == 3 * (4 + 4 - 1) * 2


def test_data_parallelism_is_one_replicated_stage() -> None:
    schedule = build_schedule(Pipeline.straight(3), 6)
    assert schedule.actions[1] == parse_actions("F1 B1 A1:0,1,2 U1x3<3 F4 B4 A2:0,1,2 U2x3<6")


@given(
    pipelines(),
    st.integers(1, 6),
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(0, 2),
    st.booleans(),
)
def test_microbatches_are_scheduled_as_smaller_minibatches_that_accumulate(
    pipeline: Pipeline,
    minibatches: int,
    microbatches: int,
    accumulate: int,
    per_link: int,
    recompute: bool,
) -> None:
    """So what holds for accumulated minibatches holds for microbatches."""
    options = {"in_flight_per_link": per_link, "recompute": recompute}
    divided = build_schedule(
        pipeline, minibatches, microbatches=microbatches, accumulate=accumulate, **options
    )
    smaller = build_schedule(
        pipeline, minibatches * microbatches, accumulate=accumulate * microbatches, **options
    )

    def named_anew(action: Action) -> Action:
        match action:
            case Pass(part, _):
                return type(action)(*divmod(part, microbatches))
            case Update(_, _, through):
                return replace(action, through=through // microbatches)
            case Send(message, _) | Receive(message, _):
                minibatch, microbatch = divmod(message.minibatch, microbatches)
                message = replace(message, minibatch=minibatch, microbatch=microbatch)
                return replace(action, message=message)
            case _:
                return action

    assert divided.actions == {
        worker: tuple(map(named_anew, actions)) for worker, actions in smaller.actions.items()
    }
