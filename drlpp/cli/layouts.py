"""Layouts of a user's own (``--compare``), and the modules of a model that they divide."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from drlpp.capturing.capture import CapturedModel
from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.module_cuts import read_layout
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement_file import read_placement
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import YOURS
from drlpp.schedule.method import Method


def module_of(captured: CapturedModel | None, option: str) -> nn.Module:
    """Return the module that an option divides.

    Raises:
        InvalidInput: the model is not known.
    """
    if captured is None:
        raise InvalidInput(f"{option} divides the model's modules: name the MODEL as well")
    return captured.task.module


def candidate_of(
    text: str, captured: CapturedModel | None, graph: OpGraph, workers: int, method: Method
) -> Candidate:
    """Return what a user names to compare with.

    Args:
        text: a placement file, which has a method of its own, or ``modules:NAME,…``.
        captured: the model, if it is known.
        graph: its operators.
        workers: that it can have at most.
        method: of a layout by modules.
    """
    if Path(text).suffix == ".json":
        plan = read_placement(text).plan(graph)
        plan.placement.validate_for(graph, workers)
        return plan.candidate
    return Candidate(read_layout(text, module_of(captured, "--compare"), graph, workers), method)


def layout_contenders(
    given: Sequence[str], captured: CapturedModel, workers: int, method: Method
) -> list[Contender]:
    """Return a contender for each layout."""
    return [
        Contender.of(
            candidate_of(text, captured, captured.graph, workers, method),
            YOURS if len(given) == 1 else f"{YOURS} {number}",
        )
        for number, text in enumerate(given, 1)
    ]
