"""What must hold for the schedules of every kind on every pipeline, and what lowering adds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Receive,
    Recompute,
    Send,
    Update,
)
from drlpp.schedule.lowering import Lowering, with_whole_backwards
from drlpp.schedule.pipeline import Pipeline, StageEdge
from drlpp.schedule.schedule import MOST_PASSES, Schedule, build_schedule, check_length, in_order
from tests.support.action_text import parse_actions
from tests.support.schedule_texts import computations
from tests.support.strategies.graphs import pipelines
from tests.support.strategies.schedules import any_schedule


def test_numbers_that_make_no_sense() -> None:
    pipeline = Pipeline.straight(1, 1)
    for options, message in (
        ({"minibatches": 0}, "minibatches is 0"),
        ({"minibatches": 10**12}, r"is \d+ passes; up to 4000000 are written"),
        ({"minibatches": 10**6, "kind": "gpipe", "microbatches": 3}, "passes; up to 4000000"),
    ):
        with pytest.raises(InvalidInput, match=message):
            build_schedule(pipeline, **options)  # type: ignore[arg-type]
    check_length(pipeline, MOST_PASSES // 2)


@given(any_schedule())
@settings(max_examples=50)
def test_every_schedule_can_be_performed_in_one_process(schedule: Schedule) -> None:
    performed: dict[int, list[Action]] = {worker: [] for worker in schedule.actions}
    sent = set()
    for worker, action in in_order(schedule):
        performed[worker].append(action)
        if isinstance(action, Send):
            assert (action.message, action.to) not in sent
            sent.add((action.message, action.to))
        if isinstance(action, Receive):
            sent.remove((action.message, worker))
    assert not sent, "every message is received once"
    assert {w: tuple(actions) for w, actions in performed.items()} == schedule.actions


@given(any_schedule())
@settings(max_examples=50)
def test_every_stage_passes_every_part_once_on_one_replica(schedule: Schedule) -> None:
    parts = {(b, p) for b in range(schedule.minibatches) for p in range(schedule.microbatches)}
    for stage, workers in enumerate(schedule.pipeline.stages):
        chunk = schedule.pipeline.stages_of(workers[0]).index(stage)
        split = any(
            isinstance(a, BackwardInput) and a.chunk == chunk
            for w in workers
            for a in schedule.actions[w]
        )
        for kind in (Forward, *((BackwardInput, BackwardWeight) if split else (Backward,))):
            found = [
                (worker, (a.minibatch, a.microbatch))
                for worker in workers
                for a in schedule.actions[worker]
                if isinstance(a, kind) and a.chunk == chunk
            ]
            if kind is not Forward and schedule.kind == "forward":
                assert not found
                continue
            assert Counter(part for _, part in found) == Counter(parts)
            if kind is Forward:
                forwards = set(found)
            else:
                assert set(found) == forwards


@given(any_schedule())
@settings(max_examples=50)
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


@given(any_schedule())
@settings(max_examples=50)
def test_recomputation_comes_between_a_forward_and_its_backward(schedule: Schedule) -> None:
    for actions in schedule.actions.values():
        waiting: set[tuple[int, int, int]] = set()
        recomputed = None
        for action in actions:
            match action:
                case Forward():
                    waiting.add((*action.part, action.chunk))
                case Recompute():
                    recomputed = (*action.part, action.chunk)
                    assert recomputed in waiting
                case Backward() | BackwardInput():
                    waiting.remove((*action.part, action.chunk))
                    assert recomputed in {None, (*action.part, action.chunk)}
                    recomputed = None
                case Update() | AllReduce():
                    assert recomputed is None, "weights change behind a recomputation"


@given(any_schedule())
@settings(max_examples=50)
def test_the_halves_of_a_backward_stand_in_order_before_the_same_update(schedule: Schedule) -> None:
    """Only a stage that sends gradients has halves."""
    pipeline = schedule.pipeline
    for stage, workers in enumerate(pipeline.stages):
        sends = any(edge.differentiable for edge in pipeline.incoming(stage))
        chunk = pipeline.stages_of(workers[0]).index(stage)
        for worker in workers:
            half_done: list[tuple[int, int]] = []
            for action in schedule.actions[worker]:
                match action:
                    case Forward(chunk=of) | Backward(chunk=of) if of == chunk:
                        assert action.part not in half_done
                    case BackwardInput(chunk=of) if of == chunk:
                        assert sends
                        half_done.append(action.part)
                    case BackwardWeight(chunk=of) if of == chunk:
                        assert half_done.pop(0) == action.part
                    case Update() | AllReduce():
                        assert not half_done, "weights change between the halves of a backward"
            assert not half_done


@given(pipelines(), st.integers(1, 40), st.integers(0, 3))
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


def test_noam() -> None:
    """⌈workers / replicas of the input stage⌉ (pipedream §3.2)."""
    assert Pipeline.straight(1, 1, 1, 1).in_flight() == (4, 3, 2, 1)
    assert Pipeline.straight(2, 1).in_flight()[0] == 2
    assert Pipeline.straight(15, 1).in_flight()[0] == 2
    assert Pipeline.straight(3, 2, 1).in_flight()[0] == 2
    assert Pipeline.straight(4).in_flight() == (1,)


def test_ranks_of_many_stages_that_all_exchange_tensors() -> None:
    """There are 2⁶² paths to the last of them."""
    pairs = [(source, target, True) for target in range(64) for source in range(target)]
    pipeline = Pipeline.connecting(((stage,) for stage in range(64)), pairs)
    assert [pipeline.rank(stage) for stage in range(64)] == list(range(64))


def test_a_stage_in_the_middle_receives_passes_and_sends() -> None:
    """The drawing in the module."""
    lowered = Lowering(Pipeline.straight(1, 1, 1), (1,), microbatches=1, share_norm=False).lower(
        parse_actions("F1 B0 U1")
    )
    assert tuple(lowered) == parse_actions("rF1:0>1@0 F1 sF1:1>2@2 rB0:2>1@2 B0 sB0:1>0@0 U1")


def test_replicas_take_microbatches_in_turn_and_sum_gradients() -> None:
    pipeline = Pipeline(((3,), (1, 4), (0,)), (StageEdge(0, 1), StageEdge(1, 2)))
    lowered = Lowering(pipeline, (0,), microbatches=3, share_norm=False).lower(
        parse_actions("F0.1 F0.2 F1.0")
    )
    assert tuple(lowered) == parse_actions("F0.1 sF0.1:0>1@4 F0.2 sF0.2:0>1@1 F1.0 sF1.0:0>1@4")
    lowered = Lowering(pipeline, (1,), microbatches=3, share_norm=True).lower(parse_actions("U1x3"))
    assert tuple(lowered) == parse_actions("A1:1,4 N1:0,1,3,4 U1x3")


def test_every_edge_carries_a_message_and_only_differentiable_ones_a_gradient() -> None:
    """0 → 1 → 2 and 0 → 2, where what 0 sends to 2 is integers."""
    edges = (StageEdge(0, 1), StageEdge(0, 2, differentiable=False), StageEdge(1, 2))
    pipeline = Pipeline(((0,), (1,), (2,)), edges)
    schedule = build_schedule(pipeline, 1)
    assert schedule.actions == {
        0: parse_actions("F0 sF0:0>1@1 sF0:0>2@2 rB0:1>0@1 B0 U1"),
        1: parse_actions("rF0:0>1@0 F0 sF0:1>2@2 rB0:2>1@2 B0 sB0:1>0@0 U1"),
        2: parse_actions("rF0:0>2@0 rF0:1>2@1 F0 B0 sB0:2>1@1 U1"),
    }


def test_a_norm_is_shared_by_all_workers_before_an_update() -> None:
    schedule = build_schedule(Pipeline.straight(2, 1), 1, "gpipe", 2, share_norm=True)
    assert schedule.actions[0] == parse_actions(
        "F0.0 sF0.0:0>1@2 rB0.0:1>0@2 B0.0 A1:0,1 N1:0,1,2 U1x2"
    )
    assert schedule.actions[2][-2:] == parse_actions("N1:0,1,2 U1x2")


def test_recomputation_stands_before_the_gradients_and_spares_what_is_used_at_once() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1), 3, recompute=True)
    assert computations(schedule, 0) == parse_actions("F0 F1 R0 B0 U1 F2 R1 B1 U2 R2 B2 U3")
    assert computations(schedule, 1) == parse_actions("F0 B0 U1 F1 B1 U2 F2 B2 U3")
    assert schedule.actions[0][4:7] == parse_actions("R0 rB0:1>0@1 B0")


def test_a_stage_that_sends_no_gradients_makes_whole_backwards() -> None:
    """A branch of integers is such a stage wherever it stands."""
    halves = parse_actions("F0 I0 F1 W0 U1")
    assert tuple(with_whole_backwards(halves)) == parse_actions("F0 F1 B0 U1")
    edges = (StageEdge(0, 1, differentiable=False), StageEdge(1, 2))
    schedule = build_schedule(Pipeline(((0,), (1,), (2,)), edges), 1, "zb-h1", 3)
    passed = parse_actions("F0.0 F0.1 F0.2 B0.0 B0.1 B0.2 U1x3")
    assert [computations(schedule, worker) for worker in (0, 1)] == [passed, passed]
