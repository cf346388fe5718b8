"""Asynchronous 1F1B: the papers' figures."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from drlpp.schedule.actions import Action, Pass, Receive, Send, Update
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule
from tests.support.action_text import parse_actions
from tests.support.schedule_texts import computations, starts, written
from tests.support.strategies.graphs import pipelines


def test_pipedream_figure_4_order() -> None:
    # The paper counts workers and minibatches from 1.
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 8)
    assert [computations(schedule, worker) for worker in range(4)] == [
        written("F0 F1 F2 F3 B0 U1 F4 B1 U2 F5 B2 U3 F6 B3 U4 F7 B4 U5 B5 U6 B6 U7 B7 U8"),
        written("F0 F1 F2 B0 U1 F3 B1 U2 F4 B2 U3 F5 B3 U4 F6 B4 U5 F7 B5 U6 B6 U7 B7 U8"),
        written("F0 F1 B0 U1 F2 B1 U2 F3 B2 U3 F4 B3 U4 F5 B4 U5 F6 B5 U6 F7 B6 U7 B7 U8"),
        written("F0 B0 U1 F1 B1 U2 F2 B2 U3 F3 B3 U4 F4 B4 U5 F5 B5 U6 F6 B6 U7 F7 B7 U8"),
    ]


def test_pipedream_figure_4_times() -> None:
    """A backward takes two units; in steady state nobody waits."""
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 8)
    forward, backward = dict.fromkeys(range(4), 1.0), dict.fromkeys(range(4), 2.0)
    first = dict(starts(schedule, 0, forward, backward))
    assert [first[f"F{b}"] for b in range(6)] == [0, 1, 2, 3, 12, 15]
    assert [first[f"B{b}"] for b in range(4)] == [10, 13, 16, 19]
    last = dict(starts(schedule, 3, forward, backward))
    assert [last[f"F{b}"] for b in range(4)] == [3, 6, 9, 12]
    assert [last[f"B{b}"] for b in range(4)] == [4, 7, 10, 13]


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


def test_microbatches_cross_the_borders_of_minibatches_without_a_flush() -> None:
    """Four stages, M = 4; warm-up is NOAM's in microbatches, the update after the last of four."""
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 2, microbatches=4)
    assert [computations(schedule, worker) for worker in (0, 1, 3)] == [
        written(
            "F0.0 F0.1 F0.2 F0.3 B0.0 F1.0 B0.1 F1.1 B0.2 F1.2 B0.3 U1x4 "
            "F1.3 B1.0 B1.1 B1.2 B1.3 U2x4"
        ),
        written(
            "F0.0 F0.1 F0.2 B0.0 F0.3 B0.1 F1.0 B0.2 F1.1 B0.3 U1x4 "
            "F1.2 B1.0 F1.3 B1.1 B1.2 B1.3 U2x4"
        ),
        written(
            "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 U1x4 "
            "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 F1.3 B1.3 U2x4"
        ),
    ]


def test_replicas_take_turns_by_microbatches() -> None:
    schedule = build_schedule(Pipeline.straight(2, 1), 2, microbatches=4)
    assert computations(schedule, 0) == written("F0.0 F0.2 B0.0 F1.0 B0.2 U1x4 F1.2 B1.0 B1.2 U2x4")
    assert computations(schedule, 1) == written("F0.1 F0.3 B0.1 F1.1 B0.3 U1x4 F1.3 B1.1 B1.3 U2x4")
    # Three replicas have no part each of a minibatch of two, so an update is of two minibatches.
    schedule = build_schedule(Pipeline.straight(3, 1), 2, microbatches=2)
    assert computations(schedule, 0) == written("F0.0 F1.1 B0.0 B1.1 U1x4<2")
    assert computations(schedule, 3) == written(
        "F0.0 B0.0 F0.1 B0.1 U1x2<1 F1.0 B1.0 F1.1 B1.1 U2x2<2"
    )


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


def test_data_parallelism_is_one_replicated_stage() -> None:
    schedule = build_schedule(Pipeline.straight(3), 6)
    assert schedule.actions[1] == parse_actions("F1 B1 A1:0,1,2 U1x3<3 F4 B4 A2:0,1,2 U2x3<6")


def test_a_stage_updates_from_whole_multiples_that_give_each_replica_one() -> None:
    schedule = build_schedule(Pipeline.straight(3, 1), 8, accumulate=2)
    assert computations(schedule, 0) == written("F0 F3 B0 F6 B3 U1x4<4 B6 U2x4<8")
    assert computations(schedule, 3) == written(
        "F0 B0 F1 B1 U1x2<2 F2 B2 F3 B3 U2x2<4 F4 B4 F5 B5 U3x2<6 F6 B6 F7 B7 U4x2<8"
    )
