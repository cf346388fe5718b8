"""Communication and recomputation, which are added to the computations of any kind."""

from __future__ import annotations

from drlpp.schedule.lowering import Lowering, with_whole_backwards
from drlpp.schedule.pipeline import Pipeline, StageEdge
from drlpp.schedule.schedule import build_schedule
from tests.support.action_text import parse_actions
from tests.support.schedule_texts import computations


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
