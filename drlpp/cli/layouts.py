"""Layouts of a user's own (``--compare``) beside a plan, or among the contenders of a race."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from drlpp.errors import InvalidInput
from drlpp.exporting.layouts.module_cuts import read_layout
from drlpp.io.formatting import predicted_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement_file import read_placement
from drlpp.placement.plan import Plan
from drlpp.planners import PlanningProblem, Space, simulated
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import YOURS
from drlpp.simulator import simulate

if TYPE_CHECKING:
    from torch import nn

    from drlpp.capturing.capture import CapturedModel
    from drlpp.capturing.graph import OpGraph
    from drlpp.placement.measurement import WorkerUsage
    from drlpp.racing.comparison import Comparison
    from drlpp.schedule.method import Method

_EQUAL = 0.005


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

    Raises:
        InvalidInput: it cannot be read, is of another model, or has more stages than workers.
    """
    if is_file(text):
        plan = read_placement(text).plan(graph)
        plan.placement.validate_for(graph, workers)
        return plan.candidate
    if module is None:
        raise InvalidInput("--compare divides the model's modules: name the MODEL as well")
    return Candidate(read_layout(text, module, graph, workers), method)


def is_file(text: str) -> bool:
    """Return whether a layout is a placement file, which has a method of its own."""
    return Path(text).suffix == ".json"


def layout_contenders(
    given: Sequence[str], captured: CapturedModel, workers: int, method: Method
) -> dict[str, Contender]:
    """Return a contender for each layout, by the layout as it was given.

    Raises:
        InvalidInput: as :func:`candidate_of`.
    """
    found = {}
    for number, text in enumerate(given, 1):
        candidate = candidate_of(text, captured.task.module, captured.graph, workers, method)
        name = YOURS if len(given) == 1 else f"{YOURS} {number}"
        found[text] = Contender.of(candidate, name)
    return found


def measured_lines(comparison: Comparison, layouts: Mapping[str, Contender]) -> Iterator[str]:
    """Yield a sentence for each layout that was measured, beside the fastest in the race."""
    seconds = [median(one.seconds) for one in comparison.contenders if one.seconds]
    for text, layout in layouts.items():
        for contender in comparison.contenders:
            measurement = contender.median_measurement
            if layout.found_by in contender.names and measurement and contender.seconds:
                own = median(contender.seconds)
                yield layout_line(text, own, min(seconds), measurement.workers)


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

    Raises:
        InvalidInput: a layout cannot be read.
    """
    cluster = problem.cluster
    for text in given:
        candidate = candidate_of(text, module, graph, cluster.accelerators, space.method)
        placement = candidate.placement
        try:
            plan = simulated(problem, space, Plan(placement, found_by=YOURS))
        except InvalidInput as error:
            yield f"{YOURS} {text}: {error}", {"layout": text, "error": str(error)}
            continue
        found = simulate(problem.workload, cluster, placement, plan.method)
        seconds = plan.seconds_per_minibatch
        record = {
            "layout": text,
            "configuration": plan.configuration,
            "in_flight_per_link": plan.method.in_flight_per_link,
            "simulated_seconds_per_minibatch": seconds,
            "error_bar": found.error_bar or None,
            "waiting": list(found.bubble.values()),
        }
        yield layout_line(text, seconds, best, found.workers, found.error_bar), record


def layout_line(
    name: str,
    seconds: float,
    best: float,
    workers: Sequence[WorkerUsage],
    error_bar: float = 0.0,
) -> str:
    """Return a sentence such as ``your layout …: 14% slower: stage 3 waits 31% of the time``.

    Args:
        name: the layout as it was given.
        seconds: of a minibatch with it.
        best: seconds of what it is compared with.
        workers: of the layout; replicas of a stage count by their mean.
        error_bar: of seconds that are simulated, as a share of them.
    """
    difference = seconds / best - 1 if best else 0.0
    verdict = f"{abs(difference):.0%} {'slower' if difference > 0 else 'faster'}"
    shares: dict[int, list[float]] = {}
    for usage in workers:
        whole = usage.busy_seconds + usage.waiting_seconds
        shares.setdefault(usage.stage, []).append(usage.waiting_seconds / whole if whole else 0.0)
    waiting = {stage: sum(found) / len(found) for stage, found in shares.items()}
    idle, busiest = max(waiting, key=waiting.__getitem__), min(waiting, key=waiting.__getitem__)
    why = f"stage {idle} waits {waiting[idle]:.0%} of the time"
    if len(waiting) > 1:
        why += f", stage {busiest} {waiting[busiest]:.0%}"
    return (
        f"{YOURS} {name}: {predicted_text(seconds, error_bar)} per minibatch, "
        f"{'as fast' if abs(difference) < _EQUAL else verdict}: {why}"
    )
