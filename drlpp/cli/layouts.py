"""Layouts of a user's own (``--compare``) beside a plan, or among the contenders of a race."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.module_cuts import read_layout
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement_file import read_placement
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, Space, simulated
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import YOURS

if TYPE_CHECKING:
    from torch import nn

    from drlpp.capturing.capture import CapturedModel
    from drlpp.capturing.graph import OpGraph
    from drlpp.schedule.method import Method


def is_file(text: str) -> bool:
    """Return whether a layout is a placement file, which has a method of its own."""
    return Path(text).suffix == ".json"


def candidate_of(
    text: str, module: nn.Module | None, graph: OpGraph, workers: int, method: Method
) -> Candidate:
    """Return what a user names to compare with.

    Args:
        text: a placement file, which has a method of its own, or ``modules:NAME,…``.
        module: the model, if it is known.
        graph: its operators.
        workers: that it can have at most.
        method: of a layout by modules.
    """
    if is_file(text):
        plan = read_placement(text).plan(graph)
        plan.placement.validate_for(graph, workers)
        return plan.candidate
    if module is None:
        raise InvalidInput("--compare divides the model's modules: name the MODEL as well")
    return Candidate(read_layout(text, module, graph, workers), method)


def layout_contenders(
    given: Sequence[str], captured: CapturedModel, workers: int, method: Method
) -> dict[str, Contender]:
    """Return a contender for each layout, by the layout as it was given."""
    found = {}
    for number, text in enumerate(given, 1):
        candidate = candidate_of(text, captured.task.module, captured.graph, workers, method)
        name = YOURS if len(given) == 1 else f"{YOURS} {number}"
        found[text] = Contender.of(candidate, name)
    return found


def simulated_layouts(
    given: Sequence[str],
    module: nn.Module | None,
    graph: OpGraph,
    problem: PlanningProblem,
    space: Space,
    best: float,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Simulate layouts, at the depth that suits each if it varies; yield a sentence and a record.

    Args:
        given: placement files or ``modules:NAME,…``.
        module: the model, if it is known.
        graph: its operators.
        problem: of them.
        space: of the plan.
        best: seconds per minibatch of the plan.
    """
    for text in given:
        workers = problem.cluster.accelerators
        candidate = candidate_of(text, module, graph, workers, space.method)
        try:
            plan = simulated(problem, space, Plan(candidate.placement, found_by=YOURS))
        except InvalidInput as error:
            yield f"{YOURS} {text}: {error}", {"layout": text, "error": str(error)}
            continue
        seconds = plan.seconds_per_minibatch
        slower = f", {seconds / best - 1:+.0%} against the plan" if best else ""
        yield (
            f"{YOURS} {text}: {plan.text} per minibatch (simulated){slower}",
            {
                "layout": text,
                "configuration": plan.configuration,
                "in_flight_per_link": plan.method.in_flight_per_link,
                "simulated_seconds_per_minibatch": seconds,
                "error_bar": plan.error_bar or None,
            },
        )
