"""What a capture does of its own grows as the model does: operations are counted, not timed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import drlpp
from drlpp.capturing import capture as capturing
from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task

REFERENCE = ModelReference.named("growing:model")


class Layers(nn.Module):
    """Layers of all kinds that once made a capture look at all the others.

    Each has a counter that nothing reads, works in place, writes into a slice of a tensor of all
    layers, views a shared weight through the views before it, and views a table of constants.
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(layers))
        self.shared = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        table = torch.arange(4.0).cos()
        kept = torch.zeros(2, len(self.norms), 4)
        for number, norm in enumerate(self.norms):
            x = norm(x).relu_()
            kept[:, number] = x
        weight: Tensor = self.shared
        for _ in self.norms:
            weight = weight.t()
            x = x @ weight
        x = x + kept.sum(1)
        for _ in self.norms:
            x = x * table.view(1, 4)
        return x


@contextmanager
def counted_operations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of instructions that the package's own Python performs inside.

    What happens while torch.export runs is not counted: that would take long.
    """
    count = [0]
    package = str(Path(drlpp.__file__).parent)

    def trace(frame: FrameType, event: str, _: Any) -> Callable[..., Any] | None:
        if not frame.f_code.co_filename.startswith(package):
            return None
        frame.f_trace_opcodes = True
        count[0] += event == "opcode"
        return trace

    def export(*arguments: Any) -> torch.export.ExportedProgram:
        sys.settrace(before)
        try:
            return real(*arguments)
        finally:
            sys.settrace(trace)

    before, real = sys.gettrace(), torch.export.export
    monkeypatch.setattr(torch.export, "export", export)
    sys.settrace(trace)
    try:
        yield count
    finally:
        sys.settrace(before)
        monkeypatch.undo()


@pytest.mark.filterwarnings("ignore::drlpp.errors.ModelNote")
def test_work_grows_as_the_model_does(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = []
    for layers in (4, 8, 12):
        task = Task(Layers(layers), (torch.randn(2, 4),))
        with counted_operations(monkeypatch) as count:
            capture(REFERENCE, task, check=False)
        counts += count
    first, second = (larger - smaller for smaller, larger in pairwise(counts))
    assert second == pytest.approx(first, rel=0.05)


@pytest.mark.parametrize(("seconds", "exports"), [(1e9, 2), (0.0, 4)])
def test_a_model_and_its_loss_are_exported_once(
    seconds: float, exports: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once more, for two samples, where comparing a whole minibatch takes longer than that."""
    real, calls = torch.export.export, []
    monkeypatch.setattr(torch.export, "export", lambda *a: calls.append(a) or real(*a))
    monkeypatch.setattr(capturing, "_LONG_FORWARD_SECONDS", seconds)
    wide = nn.Sequential(nn.Linear(800, 800), nn.Linear(800, 4))
    capture(REFERENCE, Task(wide, (torch.randn(4000, 800),)))
    assert len(calls) == exports
