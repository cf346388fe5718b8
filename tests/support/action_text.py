"""The textual form of actions, in which tests write what they expect.

=====================  ===========================================================================
``F3.0`` or ``F3``     forward of minibatch 3, microbatch 0
``R3.0``, ``B3.0``     its recomputation, its backward
``I3.0``, ``W3.0``     the half of its backward for inputs, and the half for weights
``F3.0/1``             forward through the second stage that the worker holds; so with others
``U4``                 update to version 4, from one contribution, with the minibatches before 4
``U2x8<4``             update to version 2, from 8 contributions, with the minibatches before 4
``sF3.0:0>1@5``        send the activations of minibatch 3 from stage 0 to stage 1, to worker 5
``rF3.0:0>1@2``        receive them, from worker 2
``sB3.0:1>0@2``        send gradients, from stage 1 to stage 0
``A4:0,1``             sum the gradients for version 4 over workers 0 and 1
``N4:0,1,2``           sum their squared norm
``T0.4x8<8``           update to version 4 of the weights of tie 0; ``/1`` as with passes
``C0.4:0,1``           sum the gradients for it over workers 0 and 1, replicas of a stage
``sC7.0:3>0@0``        send what stage 3 contributes to the update of tie 0 that ends with
                       minibatch 7
``sS7.0:0>3@3``        send the sum of all contributions
=====================  ===========================================================================

Lists of actions are separated by spaces. ``I`` and ``W`` are the letters of torch's pipelining;
``B``, which stands for the half for inputs in the papers on zero-bubble schedules, is a whole
backward here as it is there.
"""

from __future__ import annotations

import re

from drlpp.schedule.actions import (
    Action,
    AllReduce,
    Backward,
    BackwardInput,
    BackwardWeight,
    Forward,
    Message,
    Pass,
    Payload,
    Receive,
    Recompute,
    Send,
    TiedUpdate,
    Update,
)

_PASSES: dict[str, type[Pass]] = {
    "F": Forward,
    "R": Recompute,
    "B": Backward,
    "I": BackwardInput,
    "W": BackwardWeight,
}
LETTERS = {kind: letter for letter, kind in _PASSES.items()}
_PAYLOADS: dict[str, Payload] = {
    "F": "activation",
    "B": "gradient",
    "C": "contribution",
    "S": "sum",
}
_GRADIENTS, _SQUARED_NORM, _TIED_GRADIENTS = "A", "N", "C"

# More digits than any run needs are no number here.
_NUMBER = "([0-9]{1,15})"
_PART = rf"{_NUMBER}(?:\.{_NUMBER})?"
_PASS = re.compile(rf"([{''.join(_PASSES)}]){_PART}(?:/{_NUMBER})?")
_UPDATE = re.compile(rf"U{_NUMBER}(?:x{_NUMBER})?(?:<{_NUMBER})?")
_TIED_UPDATE = re.compile(rf"T{_NUMBER}\.{_NUMBER}(?:x{_NUMBER})?(?:<{_NUMBER})?(?:/{_NUMBER})?")
_MESSAGE = re.compile(rf"([sr])([{''.join(_PAYLOADS)}]){_PART}:{_NUMBER}>{_NUMBER}@{_NUMBER}")
_MEMBERS = "([0-9]{1,15}(?:,[0-9]{1,15})*)"
_SUM = re.compile(rf"([{_GRADIENTS}{_SQUARED_NORM}]){_NUMBER}:{_MEMBERS}")
_TIED_SUM = re.compile(rf"{_TIED_GRADIENTS}{_NUMBER}\.{_NUMBER}:{_MEMBERS}")


def parse_action(text: str) -> Action:
    """Read one action.

    Raises:
        ValueError: the text is no action.
    """
    if found := _PASS.fullmatch(text):
        letter, minibatch, microbatch, chunk = found.groups()
        return _PASSES[letter](int(minibatch), int(microbatch or 0), int(chunk or 0))
    if found := _UPDATE.fullmatch(text):
        version, contributions, through = found.groups()
        return Update(int(version), int(contributions or 1), int(through or version))
    if found := _TIED_UPDATE.fullmatch(text):
        tie, version, contributions, through, chunk = found.groups()
        return TiedUpdate(
            int(version),
            int(contributions or 1),
            int(through or version),
            int(tie),
            int(chunk or 0),
        )
    if found := _TIED_SUM.fullmatch(text):
        tie, version, members = found.groups()
        workers = tuple(map(int, members.split(",")))
        return AllReduce(int(version), workers, "tied_gradients", int(tie))
    if found := _MESSAGE.fullmatch(text):
        direction, payload, minibatch, microbatch, source, target, other = found.groups()
        message = Message(
            _PAYLOADS[payload], int(source), int(target), int(minibatch), int(microbatch or 0)
        )
        kind = Send if direction == "s" else Receive
        return kind(message, int(other))
    if found := _SUM.fullmatch(text):
        letter, version, members = found.groups()
        workers = tuple(map(int, members.split(",")))
        if letter == _GRADIENTS:
            return AllReduce(int(version), workers)
        return AllReduce(int(version), workers, "squared_norm")
    raise ValueError(f"{text!r} is no action")


def parse_actions(text: str) -> tuple[Action, ...]:
    """Read a list of actions."""
    return tuple(map(parse_action, text.split()))
