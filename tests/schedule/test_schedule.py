"""The schedules of the papers' figures, and what must hold for every pipeline."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import drlpp.schedule.schedule
from drlpp.errors import InvalidInput
from drlpp.schedule.pipeline import Pipeline, StageEdge
from drlpp.schedule.schedule import (
    MOST_PASSES,
    Action,
    AllReduce,
    Backward,
    Forward,
    Receive,
    Recompute,
    Schedule,
    ScheduleKind,
    Send,
    Update,
    build_schedule,
    check_length,
    in_order,
)
from drlpp.schedule.weight_versions import weight_versions
from drlpp.timeline.timeline import play
from tests.support.random_graphs import pipelines

KINDS: list[ScheduleKind] = ["1f1b", "1f1b-flush", "gpipe", "forward"]


def passes(schedule: Schedule, worker: int) -> str:
    """The forwards and backwards of a worker as ``F0 F1 B0 …``, microbatches as ``F0.1``."""
    written = []
    for action in schedule.actions[worker]:
        if isinstance(action, Forward | Backward):
            part = f".{action.microbatch}" if schedule.microbatches > 1 else ""
            written.append(f"{type(action).__name__[0]}{action.minibatch}{part}")
    return " ".join(written)


def starts(
    schedule: Schedule, worker: int, forward: dict[int, float], backward: dict[int, float]
) -> list[tuple[str, float]]:
    """When the passes of ``worker`` start, given the durations on each stage; the rest is free."""

    def seconds_of(by: int, action: Action) -> float:
        stage = schedule.pipeline.stage_of(by)
        if isinstance(action, Forward):
            return forward[stage]
        return backward[stage] if isinstance(action, Backward) else 0.0

    return [
        (f"{type(t.action).__name__[0]}{t.action.minibatch}", t.start)
        for t in play(schedule, seconds_of)
        if t.worker == worker and isinstance(t.action, Forward | Backward)
    ]


def test_pipedream_figure_4_order() -> None:
    # The paper counts workers and minibatches from 1.
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 8)
    assert passes(schedule, 0) == "F0 F1 F2 F3 B0 F4 B1 F5 B2 F6 B3 F7 B4 B5 B6 B7"
    assert passes(schedule, 1) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 B6 B7"
    assert passes(schedule, 2) == "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"
    assert passes(schedule, 3) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"


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


def test_the_drawing_in_the_module_is_what_is_built() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 30)
    forward, backward = dict.fromkeys(range(4), 1.0), dict.fromkeys(range(4), 2.0)
    rows = [line.split("   ", 1) for line in _drawing()]
    assert len(rows) == 4
    for stage, (_, row) in enumerate(rows):
        drawn = [
            (row[column : column + 2], column / 3)
            for column in range(0, len(row), 3)
            if row[column] in "FB"
        ]
        built = starts(schedule, stage, forward, backward)
        assert drawn == built[: len(drawn)]


def _drawing() -> list[str]:
    lines = (drlpp.schedule.schedule.__doc__ or "").splitlines()
    return [line.strip() for line in lines if line.strip().startswith("stage ")]


def test_pipedream_figure_8_order() -> None:
    """2-1: the two workers of the first stage take turns; the paper counts from 1."""
    schedule = build_schedule(Pipeline.straight(2, 1), 8)
    assert passes(schedule, 0) == "F0 F2 B0 F4 B2 F6 B4 B6"
    assert passes(schedule, 1) == "F1 F3 B1 F5 B3 F7 B5 B7"
    assert passes(schedule, 2) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7"


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


def test_noam() -> None:
    """⌈workers / replicas of the input stage⌉ (pipedream §3.2)."""
    assert Pipeline.straight(1, 1, 1, 1).in_flight() == (4, 3, 2, 1)
    assert Pipeline.straight(2, 1).in_flight()[0] == 2
    assert Pipeline.straight(15, 1).in_flight()[0] == 2
    assert Pipeline.straight(3, 2, 1).in_flight()[0] == 2
    assert Pipeline.straight(4).in_flight() == (1,)


def test_more_in_flight_for_each_link() -> None:
    """Each worker behind counts once for itself and so many times for the link into it."""
    straight = Pipeline.straight(1, 1, 1, 1)
    assert straight.in_flight(1) == (7, 5, 3, 1)
    assert straight.in_flight(2) == (10, 7, 4, 1)
    # ⌈2 · 3 / 3⌉ and ⌈2 · 1 / 2⌉ beyond one.
    assert Pipeline.straight(3, 2, 1).in_flight(1) == (3, 2, 1)
    assert Pipeline.straight(4).in_flight(3) == (1,)


def test_the_order_with_one_more_in_flight_for_the_link() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1), 6, in_flight_per_link=1)
    assert passes(schedule, 0) == "F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 B4 B5"
    assert passes(schedule, 1) == "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"


def test_pipeoptim_figure_1b_gpipe() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 2, "gpipe", microbatches=4)
    for worker in range(4):
        assert passes(schedule, worker) == (
            "F0.0 F0.1 F0.2 F0.3 B0.0 B0.1 B0.2 B0.3 F1.0 F1.1 F1.2 F1.3 B1.0 B1.1 B1.2 B1.3"
        )
        # One update a minibatch, and both passes on the same weights.
        assert {v.difference for v in weight_versions(schedule, worker).values()} == {0}
        updates = [a for a in schedule.actions[worker] if isinstance(a, Update)]
        assert updates == [
            Update(1, contributions=4, through=1),
            Update(2, contributions=4, through=2),
        ]


def test_microbatches_are_dealt_to_replicas_in_turn() -> None:
    schedule = build_schedule(Pipeline.straight(2, 1), 2, "gpipe", microbatches=3)
    assert passes(schedule, 0) == "F0.0 F0.2 B0.0 B0.2 F1.1 B1.1"
    assert passes(schedule, 1) == "F0.1 B0.1 F1.0 F1.2 B1.0 B1.2"
    updates = [a for a in schedule.actions[0] if isinstance(a, Update)]
    assert updates == [Update(1, contributions=3, through=1), Update(2, contributions=3, through=2)]


def test_gpipe_flush_costs_the_known_bubble() -> None:
    """M microbatches on D stages take (M + D − 1) times a microbatch (forward + backward)."""
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 3, "gpipe", microbatches=4)
    end = max(t.end for t in play(schedule, lambda _, a: float(isinstance(a, Forward | Backward))))
    assert end == 3 * (4 + 4 - 1) * 2


def test_pipeoptim_figure_1c_naive() -> None:
    """One minibatch at a time: it is active on one worker at a time."""
    schedule = build_schedule(Pipeline.straight(1, 1, 1, 1), 3, "gpipe")
    assert passes(schedule, 2) == "F0 B0 F1 B1 F2 B2"
    timed = [
        t
        for t in play(schedule, lambda _, a: float(isinstance(a, Forward | Backward)))
        if isinstance(t.action, Forward | Backward)
    ]
    assert sorted(t.start for t in timed) == list(range(3 * 2 * 4))


def test_branches_take_the_widest_branch_into_account() -> None:
    """0 → 1 → 3 and 0 → 2 → 3, where stage 2 has three replicas."""
    edges = tuple(StageEdge(a, b) for a, b in [(0, 1), (0, 2), (1, 3), (2, 3)])
    pipeline = Pipeline(((0,), (1,), (2, 3, 4), (5,)), edges)
    assert pipeline.in_flight() == (5, 2, 2, 1)
    assert pipeline.depth == 3


def test_data_parallelism_is_one_replicated_stage() -> None:
    schedule = build_schedule(Pipeline.straight(3), 6)
    assert schedule.actions[1] == (
        Forward(1),
        Backward(1),
        AllReduce(1, (0, 1, 2)),
        Update(1, 3, through=3),
        Forward(4),
        Backward(4),
        AllReduce(2, (0, 1, 2)),
        Update(2, 3, through=6),
    )


def test_evaluation_has_forwards_only() -> None:
    schedule = build_schedule(Pipeline.straight(2, 1), 3, "forward")
    assert passes(schedule, 0) == "F0 F2"
    kinds = {type(action) for actions in schedule.actions.values() for action in actions}
    assert kinds == {Forward, Send, Receive}


def test_no_gradient_comes_back_over_an_edge_of_integers() -> None:
    pipeline = Pipeline(((0,), (1,)), (StageEdge(0, 1, differentiable=False),))
    schedule = build_schedule(pipeline, 2)
    payloads = {a.message.payload for a in schedule.actions[1] if isinstance(a, Send | Receive)}
    assert payloads == {"activation"}


def test_numbers_that_make_no_sense() -> None:
    pipeline = Pipeline.straight(1, 1)
    with pytest.raises(InvalidInput, match="minibatches is 0"):
        build_schedule(pipeline, 0)
    with pytest.raises(InvalidInput, match="use kind 'gpipe'"):
        build_schedule(pipeline, 1, "1f1b", microbatches=2)
    with pytest.raises(InvalidInput, match="in_flight_per_link is -1; 0 or more"):
        build_schedule(pipeline, 1, in_flight_per_link=-1)
    for kind in ("gpipe", "1f1b-flush", "forward"):
        with pytest.raises(InvalidInput, match=f"a {kind} schedule has no .* use kind '1f1b'"):
            build_schedule(pipeline, 1, kind, in_flight_per_link=1)


def test_workers_that_wait_for_each_other_are_reported() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1), 1)
    stuck = Schedule("1f1b", schedule.pipeline, 1, 1, {**schedule.actions, 0: ()})
    with pytest.raises(RuntimeError, match="cannot proceed"):
        list(in_order(stuck))


@st.composite
def any_schedule(draw: st.DrawFn) -> Schedule:
    kind = draw(st.sampled_from(KINDS))
    return build_schedule(
        draw(pipelines()),
        draw(st.integers(1, 12)),
        kind,
        draw(st.integers(1, 4)) if kind in {"gpipe", "1f1b-flush"} else 1,
        accumulate=draw(st.integers(1, 4)),
        in_flight_per_link=draw(st.integers(0, 3)) if kind == "1f1b" else 0,
        recompute=draw(st.booleans()),
        share_norm=kind in {"gpipe", "1f1b-flush"} and draw(st.booleans()),
    )


schedules = any_schedule()


@given(schedules)
@settings(deadline=None)
def test_every_schedule_can_be_performed_in_one_process(schedule: Schedule) -> None:
    performed: dict[int, list[Action]] = {worker: [] for worker in schedule.actions}
    sent = set()
    for worker, action in in_order(schedule):
        performed[worker].append(action)
        if isinstance(action, Send):
            sent.add((action.message, action.to))
        if isinstance(action, Receive):
            assert (action.message, worker) in sent
    assert {w: tuple(actions) for w, actions in performed.items()} == schedule.actions


@given(schedules)
@settings(deadline=None)
def test_every_message_is_sent_and_received_once(schedule: Schedule) -> None:
    sent: Counter[object] = Counter()
    received: Counter[object] = Counter()
    for worker, actions in schedule.actions.items():
        sent.update((a.message, worker, a.to) for a in actions if isinstance(a, Send))
        received.update((a.message, a.sender, worker) for a in actions if isinstance(a, Receive))
    assert sent == received
    assert set(sent.values()) <= {1}


@given(schedules)
@settings(deadline=None)
def test_messages_take_the_ways_of_the_pipeline(schedule: Schedule) -> None:
    """No other ways, and a long run takes all of them."""
    pipeline = schedule.pipeline
    taken = _ways_taken(schedule)
    gradients = {
        (receiver, sender)
        for sender, receiver in taken
        if schedule.kind == "forward" and (receiver, sender) in pipeline.ways
    }
    assert taken <= set(pipeline.ways)
    everything = math.lcm(*(len(workers) for workers in pipeline.stages))
    if schedule.minibatches * schedule.microbatches >= everything:
        assert taken | gradients == set(pipeline.ways)


def _ways_taken(schedule: Schedule) -> set[tuple[int, int]]:
    return {
        (worker, action.to)
        for worker, actions in schedule.actions.items()
        for action in actions
        if isinstance(action, Send)
    }


@given(schedules)
@settings(deadline=None)
def test_every_stage_passes_every_part_once_on_one_replica(schedule: Schedule) -> None:
    parts = {(b, p) for b in range(schedule.minibatches) for p in range(schedule.microbatches)}
    for workers in schedule.pipeline.stages:
        for kind in (Forward, Backward):
            found = [
                (worker, (a.minibatch, a.microbatch))
                for worker in workers
                for a in schedule.actions[worker]
                if isinstance(a, kind)
            ]
            if kind is Backward and schedule.kind == "forward":
                assert not found
                continue
            assert Counter(part for _, part in found) == Counter(parts)
            if kind is Forward:
                forwards = set(found)
            else:
                assert set(found) == forwards


@given(schedules)
@settings(deadline=None)
def test_replicas_make_the_same_updates_from_all_parts(schedule: Schedule) -> None:
    for workers in schedule.pipeline.stages:
        updates = [
            [
                a
                for a in schedule.actions[worker]
                if isinstance(a, Update) or (isinstance(a, AllReduce) and a.content == "gradients")
            ]
            for worker in workers
        ]
        assert all(other == updates[0] for other in updates)
        made = [action for action in updates[0] if isinstance(action, Update)]
        assert [update.version for update in made] == list(range(1, len(made) + 1))
        parts = 0 if schedule.kind == "forward" else schedule.minibatches * schedule.microbatches
        assert sum(update.contributions for update in made) == parts
        assert [update.through for update in made] == sorted({update.through for update in made})
        assert not made or made[-1].through == schedule.minibatches
        assert (len(made) < len(updates[0])) == (len(workers) > 1 and bool(made))


@given(schedules)
@settings(deadline=None)
def test_recomputation_comes_between_a_forward_and_its_backward(schedule: Schedule) -> None:
    for actions in schedule.actions.values():
        waiting: set[tuple[int, int]] = set()
        recomputed = None
        for action in actions:
            match action:
                case Forward(minibatch, microbatch):
                    waiting.add((minibatch, microbatch))
                case Recompute(minibatch, microbatch):
                    assert (minibatch, microbatch) in waiting
                    recomputed = (minibatch, microbatch)
                case Backward(minibatch, microbatch):
                    waiting.remove((minibatch, microbatch))
                    assert recomputed in {None, (minibatch, microbatch)}
                    recomputed = None
                case Update() | AllReduce():
                    assert recomputed is None, "weights change behind a recomputation"


def test_recomputation_spares_what_is_used_at_once() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1), 3, recompute=True)
    recomputed = [
        [a.minibatch for a in schedule.actions[w] if isinstance(a, Recompute)] for w in (0, 1)
    ]
    assert recomputed == [[0, 1, 2], []]


def test_flushed_1f1b_holds_fewer_microbatches_than_gpipe() -> None:
    """PipeDream-Flush and DAPPLE: GPipe's bubble, but D − rank microbatches in flight."""
    pipeline = Pipeline.straight(1, 1, 1, 1)
    flushed = build_schedule(pipeline, 1, "1f1b-flush", microbatches=6)
    assert passes(flushed, 3) == "F0.0 B0.0 F0.1 B0.1 F0.2 B0.2 F0.3 B0.3 F0.4 B0.4 F0.5 B0.5"
    assert passes(flushed, 2) == "F0.0 F0.1 B0.0 F0.2 B0.1 F0.3 B0.2 F0.4 B0.3 F0.5 B0.4 B0.5"
    ends = [
        max(t.end for t in play(schedule, lambda _, a: float(isinstance(a, Forward | Backward))))
        for schedule in (flushed, build_schedule(pipeline, 1, "gpipe", microbatches=6))
    ]
    assert ends == [(6 + 4 - 1) * 2] * 2


def test_accumulation_makes_one_update_of_several_minibatches() -> None:
    schedule = build_schedule(Pipeline.straight(2, 1), 7, accumulate=3)
    for worker in schedule.actions:
        updates = [a for a in schedule.actions[worker] if isinstance(a, Update)]
        assert updates == [Update(1, 3, 3), Update(2, 3, 6), Update(3, 1, 7)]


def test_a_stage_updates_from_whole_multiples_that_give_each_replica_one() -> None:
    schedule = build_schedule(Pipeline.straight(3, 1), 8, accumulate=2)
    through = {
        worker: [a.through for a in schedule.actions[worker] if isinstance(a, Update)]
        for worker in (0, 3)
    }
    assert through == {0: [4, 8], 3: [2, 4, 6, 8]}


def test_clipping_shares_the_norm_of_all_stages() -> None:
    schedule = build_schedule(Pipeline.straight(2, 1), 1, "gpipe", 2, share_norm=True)
    kinds = [a.content for a in schedule.actions[0] if isinstance(a, AllReduce)]
    assert kinds == ["gradients", "squared_norm"]
    assert [a.workers for a in schedule.actions[2] if isinstance(a, AllReduce)] == [(0, 1, 2)]


@given(pipelines(), st.integers(1, 40), st.integers(0, 3))
@settings(deadline=None)
def test_in_flight_is_a_limit_and_is_reached(
    pipeline: Pipeline, minibatches: int, per_link: int
) -> None:
    schedule = build_schedule(pipeline, minibatches, in_flight_per_link=per_link)
    for stage, workers in enumerate(pipeline.stages):
        for replica, worker in enumerate(workers):
            in_flight = most = 0
            for action in schedule.actions[worker]:
                in_flight += isinstance(action, Forward) - isinstance(action, Backward)
                most = max(most, in_flight)
            assert in_flight == 0
            mine = len(range(replica, minibatches, len(workers)))
            assert most == min(pipeline.in_flight(per_link)[stage], mine)


def test_a_schedule_that_no_memory_holds_is_refused() -> None:
    pipeline = Pipeline.straight(1, 1)
    for minibatches, microbatches in ((10**12, 1), (MOST_PASSES // 2 + 1, 1), (10**6, 3)):
        kind = "gpipe" if microbatches > 1 else "1f1b"
        with pytest.raises(InvalidInput, match=r"is \d+ passes; up to 4000000 are written"):
            build_schedule(pipeline, minibatches, kind, microbatches)  # type: ignore[arg-type]
    check_length(pipeline, MOST_PASSES // 2)
