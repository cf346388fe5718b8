"""Cutting a schedule: nothing is lost or doubled, and no message is on its way at a cut."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.schedule.actions import Action, Receive, Send, Update
from drlpp.schedule.cut import cut_schedule
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.schedule import Schedule, build_schedule, in_order
from tests.support.strategies.graphs import pipelines


@st.composite
def schedules_and_cuts(draw: st.DrawFn) -> tuple[Schedule, list[int]]:
    kind = draw(st.sampled_from(["1f1b", "1f1b-flush", "gpipe"]))
    minibatches = draw(st.integers(1, 14))
    schedule = build_schedule(
        draw(pipelines()),
        minibatches,
        kind,
        draw(st.integers(1, 3)),
        accumulate=draw(st.integers(1, 3)),
        in_flight_per_link=draw(st.integers(0, 2)) if kind == "1f1b" else 0,
        recompute=draw(st.booleans()),
    )
    cuts = draw(st.lists(st.integers(1, minibatches), unique=True, max_size=3))
    return schedule, sorted(cuts)


def _without_receives(actions: tuple[Action, ...]) -> list[Action]:
    return [action for action in actions if not isinstance(action, Receive)]


@given(schedules_and_cuts())
@settings(max_examples=50)
def test_segments_are_the_schedule_with_some_receives_earlier(
    given_: tuple[Schedule, list[int]],
) -> None:
    schedule, cuts = given_
    segments = cut_schedule(schedule, cuts)
    assert len(segments) == len(cuts) + 1
    for worker, actions in schedule.actions.items():
        joined = tuple(a for segment in segments for a in segment[worker].actions)
        assert _without_receives(joined) == _without_receives(actions)
        assert set(joined) == set(actions)
        assert len(joined) == len(actions)
        # Behind a receive lies at least what lay behind it: it has only moved to the front.
        for receive in (a for a in actions if isinstance(a, Receive)):
            before = set(_without_receives(joined[: joined.index(receive)]))
            assert before <= set(actions[: actions.index(receive)])
        from_one = [a for a in actions if isinstance(a, Receive)]
        for sender in {a.sender for a in from_one}:
            in_turn = [a for a in from_one if a.sender == sender]
            assert [a for a in joined if isinstance(a, Receive) and a.sender == sender] == in_turn


@given(schedules_and_cuts())
@settings(max_examples=50)
def test_every_segment_can_be_performed_alone(given_: tuple[Schedule, list[int]]) -> None:
    schedule, cuts = given_
    for segment in cut_schedule(schedule, cuts):
        actions = {worker: part.actions for worker, part in segment.items()}
        # A receive of an earlier segment's message, or a sum that not all have reached, would hang.
        assert len(list(in_order(replace(schedule, actions=actions)))) == sum(
            len(of_worker) for of_worker in actions.values()
        )
        sent = {(a.message, a.to) for part in actions.values() for a in part if isinstance(a, Send)}
        received = {
            (a.message, worker)
            for worker, part in actions.items()
            for a in part
            if isinstance(a, Receive)
        }
        assert sent == received


def test_a_cut_lies_behind_the_update_of_its_minibatch_with_others_in_flight() -> None:
    schedule = build_schedule(Pipeline.straight(1, 1, 1), 6)
    first, second = cut_schedule(schedule, [2])
    for worker, flight in enumerate(({2, 3}, {2}, set())):
        updates = [a.through for a in first[worker].actions if isinstance(a, Update)]
        assert updates == [1, 2]
        assert {minibatch for minibatch, _ in first[worker].in_flight} == flight
        assert second[worker].version == 2
    # The activations that the earlier stages have sent ahead wait at the later ones.
    assert [a.message.minibatch for a in first[2].actions if isinstance(a, Receive)] == [0, 1, 2]
    assert isinstance(first[2].actions[-1], Receive)


@given(schedules_and_cuts())
@settings(max_examples=50)
def test_a_cut_between_whole_updates_lies_behind_the_same_minibatches_everywhere(
    given_: tuple[Schedule, list[int]],
) -> None:
    schedule, cuts = given_
    updates = {
        worker: {a.through for a in actions if isinstance(a, Update)}
        for worker, actions in schedule.actions.items()
    }
    whole = [cut for cut in cuts if all(cut in of_worker for of_worker in updates.values())]
    reached = dict.fromkeys(updates, 0)
    for cut, segment in zip(whole, cut_schedule(schedule, whole), strict=False):
        for worker, part in segment.items():
            made = [a.through for a in part.actions if isinstance(a, Update)]
            reached[worker] = max([reached[worker], *made])
        assert set(reached.values()) == {cut}
