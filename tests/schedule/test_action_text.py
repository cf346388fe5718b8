"""The textual form of actions reads back what it wrote, and refuses what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.errors import InvalidInput
from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Message,
    Receive,
    Recompute,
    Send,
    Update,
)
from tests.support.action_text import action_text, actions_text, parse_action, parse_actions

numbers = st.integers(0, 10**15 - 1)
messages = st.builds(
    Message, st.sampled_from(["activation", "gradient"]), numbers, numbers, numbers, numbers
)
actions: st.SearchStrategy[Action] = st.one_of(
    *(
        st.builds(kind, numbers, numbers, numbers)
        for kind in (Forward, Recompute, Backward, BackwardInput, BackwardWeight)
    ),
    st.builds(Update, numbers, numbers, numbers),
    *(st.builds(kind, messages, numbers) for kind in (Send, Receive)),
    st.builds(
        AllReduce,
        numbers,
        st.lists(numbers, min_size=1, max_size=5).map(tuple),
        st.sampled_from(["gradients", "squared_norm"]),
    ),
)


@given(st.lists(actions, max_size=6))
def test_what_is_written_is_read_again(several: list[Action]) -> None:
    assert parse_actions(actions_text(several)) == tuple(several)


ACTIVATIONS = Message("activation", 0, 1, 3, 2)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("F3.0", Forward(3)),
        ("R3.1", Recompute(3, 1)),
        ("B12.0", Backward(12)),
        ("I12.0", BackwardInput(12)),
        ("W3.1", BackwardWeight(3, 1)),
        ("F3.1/1", Forward(3, 1, chunk=1)),
        ("U4", Update(4, 1, 4)),
        ("U2x8<4", Update(2, contributions=8, through=4)),
        ("U2x8", Update(2, contributions=8, through=2)),
        ("U2<4", Update(2, contributions=1, through=4)),
        ("sF3.2:0>1@5", Send(ACTIVATIONS, to=5)),
        ("rF3.2:0>1@2", Receive(ACTIVATIONS, sender=2)),
        ("sB3.0:1>0@2", Send(Message("gradient", 1, 0, 3, 0), to=2)),
        ("A4:0,1", AllReduce(4, (0, 1))),
        ("N4:2", AllReduce(4, (2,), "squared_norm")),
    ],
)
def test_every_form(text: str, action: Action) -> None:
    assert action_text(action) == text
    assert parse_action(text) == action


def test_the_first_microbatch_may_be_left_out() -> None:
    assert parse_actions("F3 B3  sF3:0>1@5\nU4") == parse_actions("F3.0 B3.0 sF3.0:0>1@5 U4")


@pytest.mark.parametrize(
    "text",
    [
        *("", "F", "f3", "F-1", "F3.", "F3/", "F³", "F3.0.0", "F3.0B3.0", "F" + "9" * 5000, "X3"),
        *("U", "U4x", "U4<", "sF3", "sF3:0>1", "sR3:0>1@2", "A4", "A4:", "A4:0,", "N4:0;1"),
    ],
)
def test_what_is_no_action_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no action") as refused:
        parse_action(text)
    assert len(str(refused.value)) < 250
