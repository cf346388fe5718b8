"""Copies of shared weights: what a schedule does for them, and that nothing is lost or doubled."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import Action, Receive, Send, TiedUpdate
from drlpp.schedule.analysis.weight_versions import (
    stage_delay,
    tied_delay,
    update_rates,
    weight_uses,
    weight_versions,
)
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import build_schedule, in_order
from drlpp.schedule.ties import ties_of, with_ties
from tests.support.action_text import parse_actions
from tests.support.schedule_texts import folded
from tests.support.strategies.graphs import pipelines


def tied(*replicas: int, stages: tuple[int, ...] | None = None) -> Pipeline:
    """A chain whose first and last stage share weights, if no others are named."""
    return replace(Pipeline.straight(*replicas), ties=(stages or (0, len(replicas) - 1),))


def test_the_first_stage_sums_and_the_last_follows_it() -> None:
    schedule = build_schedule(tied(1, 1, 1), 4)
    assert schedule.actions[0] == parse_actions(
        "F0.0 sF0.0:0>1@1 F1.0 sF1.0:0>1@1 F2.0 sF2.0:0>1@1 "
        "rB0.0:1>0@1 B0.0 rC0.0:2>0@2 sS0.0:0>2@2 T0.1 U1 F3.0 sF3.0:0>1@1 "
        "rB1.0:1>0@1 B1.0 rC1.0:2>0@2 sS1.0:0>2@2 T0.2 U2 "
        "rB2.0:1>0@1 B2.0 rC2.0:2>0@2 sS2.0:0>2@2 T0.3 U3 "
        "rB3.0:1>0@1 B3.0 rC3.0:2>0@2 sS3.0:0>2@2 T0.4 U4"
    )
    # Minibatch 3 met version 1 on the first stage, so it meets that here as well.
    assert schedule.actions[2] == parse_actions(
        "rF0.0:1>2@1 F0.0 B0.0 sB0.0:2>1@1 sC0.0:2>0@0 U1 "
        "rF1.0:1>2@1 F1.0 B1.0 sB1.0:2>1@1 sC1.0:2>0@0 U2 "
        "rF2.0:1>2@1 F2.0 B2.0 sB2.0:2>1@1 sC2.0:2>0@0 U3 "
        "rS0.0:0>2@0 T0.1 rF3.0:1>2@1 F3.0 B3.0 sB3.0:2>1@1 sC3.0:2>0@0 U4 "
        "rS1.0:0>2@0 T0.2 rS2.0:0>2@0 T0.3 rS3.0:0>2@0 T0.4"
    )


def test_a_schedule_that_flushes_updates_copies_with_the_stage() -> None:
    """And the norm of all gradients waits for their sum."""
    schedule = build_schedule(tied(1, 2), 1, "gpipe", 2, share_norm=True)
    assert schedule.actions[0] == parse_actions(
        "F0.0 sF0.0:0>1@1 F0.1 sF0.1:0>1@2 rB0.0:1>0@1 B0.0 rB0.1:1>0@2 B0.1 "
        "rC0.0:1>0@1 sS0.0:0>1@1 sS0.0:0>1@2 N1:0,1,2 T0.1x2 U1x2"
    )
    assert schedule.actions[2] == parse_actions(
        "rF0.1:0>1@0 F0.1 B0.1 sB0.1:1>0@0 A1:1,2 C0.1:1,2 N1:0,1,2 rS0.0:0>1@0 T0.1x2 U1x2"
    )


def test_stages_of_two_and_three_replicas_share_updates_of_six() -> None:
    pipeline = tied(2, 3, 1, stages=(0, 1))
    (tie,) = Method(policy="vanilla").ties(pipeline)
    assert tie.together == 6
    assert [update.contributions for update in tie.updates(13, 1)] == [6, 6, 1]


def test_a_worker_with_both_stages_hands_over_without_a_message() -> None:
    pipeline = replace(folded(2), ties=((0, 3),))
    schedule = build_schedule(pipeline, 1, "zb-v", 2)
    messages = [a.message for a in schedule.actions[0] if isinstance(a, Send | Receive)]
    assert {message.payload for message in messages} == {"activation", "gradient"}
    assert schedule.actions[0][-3:] == parse_actions("T0.1x2 T0.1x2/1 U1x2")


@pytest.mark.parametrize(
    ("policy", "forward", "backward"),
    # Minibatch 8 meets version 6 in its forward on the first stage, and version 8 is updated by it.
    [("pipeoptim", (2, 2), (0, 2)), ("spectrain", (2, 2), (0, 2)), ("stash", (0, 0), (0, 0))],
)
def test_predictions_look_ahead_to_the_update_on_every_stage(
    policy: str, forward: tuple[int, int], backward: tuple[int, int]
) -> None:
    method, pipeline = Method(policy=policy), tied(1, 1, 1)
    (tie,) = method.ties(pipeline)
    uses = weight_uses(method.schedule_for(pipeline, 12), method, tie)
    first, last = uses[0][8, 0], uses[2][8, 0]
    assert (first.newest_in_forward, first.newest_in_backward) == (6, 8)
    # No update comes between the passes of the last stage, but its gradient is as late.
    assert (last.newest_in_forward, last.newest_in_backward) == (6, 6)
    assert (first.forward_lead, last.forward_lead) == forward
    assert (first.backward_lead, last.backward_lead) == backward
    assert first.stashed == last.stashed == 6
    own = weight_uses(method.schedule_for(pipeline, 12), method)
    assert own[2][8, 0].newest_in_forward == 8


def test_learning_rates_are_annealed_for_the_root() -> None:
    method = Method(policy="pipemare", annealing_minibatches=4)
    pipeline = tied(1, 1, 1)
    (tie,) = method.ties(pipeline)
    schedule = method.schedule_for(pipeline, 6)
    wanted = update_rates(schedule, 0, method, [1.0])
    assert wanted[0] == pytest.approx(1 / 3)
    assert update_rates(schedule, 0, method, [1.0], tie=tie) == wanted
    assert update_rates(schedule, 2, method, [1.0], tie=tie) == wanted
    assert update_rates(schedule, 2, method, [1.0]) == [1.0] * 6


@st.composite
def tied_pipelines(draw: st.DrawFn) -> Pipeline:
    pipeline = draw(pipelines().filter(lambda pipeline: len(pipeline.stages) > 1))
    stages = st.sets(st.integers(0, len(pipeline.stages) - 1), min_size=2)
    ties = draw(st.sets(stages.map(sorted).map(tuple), min_size=1, max_size=2))
    return replace(pipeline, ties=tuple(sorted(ties)))


@st.composite
def methods(draw: st.DrawFn) -> Method:
    flushed = draw(st.sampled_from(["gpipe", "1f1b-flush", "zb-h1", ""]))
    options = {
        "schedule": flushed or "1f1b",
        "policy": "sync" if flushed else "vanilla",
        "microbatches": draw(st.integers(1, 4)),
        "accumulate": draw(st.integers(1, 4)),
        "in_flight_per_link": 0 if flushed else draw(st.integers(0, 3)),
        "clip_norm": float(draw(st.booleans())),
    }
    return Method.model_validate(options)


@given(tied_pipelines(), methods(), st.integers(2, 30))
@settings(deadline=None, max_examples=40)
def test_every_part_meets_the_same_version_everywhere(
    pipeline: Pipeline, method: Method, minibatches: int
) -> None:
    schedule = method.schedule_for(pipeline, minibatches)
    for _ in in_order(schedule):
        pass
    for tie in method.ties(pipeline):
        met: dict[tuple[int, int], int] = {}
        for stage in tie.stages:
            for worker in pipeline.stages[stage]:
                for part, versions in weight_versions(schedule, worker, tie).items():
                    assert (
                        met.setdefault(part, versions.newest_in_forward)
                        == versions.newest_in_forward
                    )
                own = [a for a in schedule.actions[worker] if isinstance(a, TiedUpdate)]
                wanted = tie.updates(minibatches, method.microbatches)
                assert [update for update in own if update.tie == tie.number] == wanted
        assert stage_delay(schedule, tie.root, tie) <= tied_delay(pipeline, tie, method)
    _check_messages(schedule.actions, pipeline)


def _check_messages(actions: dict[int, tuple[Action, ...]], pipeline: Pipeline) -> None:
    """Check that every message arrives, in order, on a way that the workers have prepared."""
    sent: dict[tuple[int, int], list[object]] = {}
    received: dict[tuple[int, int], list[object]] = {}
    for worker, own in actions.items():
        for action in own:
            if isinstance(action, Send):
                sent.setdefault((worker, action.to), []).append(action.message)
            elif isinstance(action, Receive):
                received.setdefault((action.sender, worker), []).append(action.message)
    assert sent == received
    assert sent.keys() <= set(pipeline.routes)


def test_an_order_in_which_copies_would_differ_is_refused() -> None:
    """A stage that runs ahead of the root has not contributed to what it is to meet."""
    pipeline = tied(1, 1)
    actions = {0: parse_actions("F0 B0 U1 F1 B1 U2"), 1: parse_actions("F0 F1 B0 U1 B1 U2")}
    ties = ties_of(pipeline, (1, 2), (1, 1))
    assert ties[0].root == 1
    wrong = (replace(ties[0], root=0),)
    with pytest.raises(InvalidInput, match="stages 0 and 1 share a parameter, and minibatch 1"):
        with_ties(actions, pipeline, wrong, 2, 1, flushes=False)
