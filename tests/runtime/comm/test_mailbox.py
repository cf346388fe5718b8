"""Receives that are posted ahead, into memory of the shape that comes."""

from typing import Any, cast

import pytest

from drlpp.capturing.graph import TensorSpec
from drlpp.runtime.comm.mailbox import Mailbox
from drlpp.runtime.stage.stages import StageProgram
from drlpp.schedule.actions import Message, Receive


def _of_length(length: int) -> list[StageProgram]:
    """The second stage of a model whose samples have so many words."""
    spec = TensorSpec(shape=(length,), dtype="float32", bytes_=4 * length)
    return [StageProgram(1, cast(Any, None), (), {}, {0: ((0, spec),)}, ())]


class _Links:
    def __init__(self) -> None:
        self.posted: list[tuple[int, ...]] = []

    def receive(self, specs: list[TensorSpec], sender: int) -> None:
        self.posted += [spec.shape for spec in specs]


@pytest.mark.parametrize("shapes", [1, 2, 3])
def test_a_minibatch_is_received_in_its_own_shape(shapes: int) -> None:
    links = _Links()
    receives = [Receive(Message("activation", 0, 1, number, 0), 0) for number in range(4)]
    programs = [_of_length(4 * (shape + 1)) for shape in range(shapes)]
    Mailbox(cast(Any, links), programs, lambda number: number % shapes, receives, posted=4)
    assert links.posted == [(4 * (number % shapes + 1),) for number in range(4)]
