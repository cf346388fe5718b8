"""Tables of placements: every one that was measured, and the stages of one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import Profile
from drlpp.io.formatting import seconds_text
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.placement.placement import Placement

Cell = str | tuple[float, str]
"""A text, or a number with the text that is shown for it."""


@dataclass(frozen=True)
class Table:
    """A table of a section; what is a number is sorted as one.

    Attributes:
        headings: of the columns.
        rows: their cells.
        details: lines about each row, which it shows under the mouse and under its first cell's
            focus; none for any without them.
    """

    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    details: tuple[tuple[str, ...], ...] = ()


def measured_table(measured: Sequence[tuple[Candidate, Outcome]], profile: Profile | None) -> Table:
    """Return every measurement in turn; each has its stages in detail."""
    rows: list[tuple[Cell, ...]] = []
    found: tuple[Cell, ...]
    for number, (candidate, outcome) in enumerate(measured, start=1):
        if isinstance(outcome, Measurement):
            seconds, deviation = outcome.seconds_per_minibatch, outcome.standard_deviation_seconds
            text = seconds_text(seconds) + ", cut short" * outcome.cut_short
            found = ((seconds, text), (deviation, seconds_text(deviation)))
        else:
            found = (f"failed: {outcome.reason}", "–")
        stages, method = stages_text(candidate.placement), str(candidate.method)
        rows.append((candidate.configuration, stages, method, *found, (number, str(number))))
    return Table(
        ("configuration", "stages", "method", "a minibatch", "deviation", "measured as"),
        tuple(rows),
        tuple(tuple(_stage_lines(candidate.placement, profile)) for candidate, _ in measured),
    )


def stages_text(placement: Placement) -> str:
    """Return how many operators every stage has, and its accelerators, in a line."""
    return "; ".join(
        f"{len(stage.operators)} on {', '.join(map(str, stage.accelerators))}"
        for stage in placement.stages
    )


def _stage_lines(placement: Placement, profile: Profile | None) -> Iterator[str]:
    for number, stage in enumerate(placement.stages):
        workers = ", ".join(map(str, stage.accelerators))
        line = f"stage {number} on accelerator{'s'[: len(stage.accelerators) > 1]} {workers}: "
        count = len(stage.operators)
        line += "1 operator" if count == 1 else f"{count} operators"
        if profile is not None:
            size, seconds = _costs(stage.operators, profile)
            line += f", {_ends(stage.operators, profile.graph)}; {size / 1e6:,.2f} MB of parameters"
            line += f"; {seconds_text(seconds)} profiled"
        yield line


def stages_table(placement: Placement, profile: Profile) -> Table:
    """Return the stages of a placement with their parameters and profiled time."""
    rows: list[tuple[Cell, ...]] = []
    for number, stage in enumerate(placement.stages):
        size, seconds = _costs(stage.operators, profile)
        rows.append(
            (
                (number, str(number)),
                ", ".join(map(str, stage.accelerators)),
                (len(stage.operators), str(len(stage.operators))),
                _ends(stage.operators, profile.graph),
                (size, f"{size / 1e6:,.2f} MB"),
                (seconds, seconds_text(seconds)),
            )
        )
    headings = ("stage", "accelerators", "operators", "from, to", "parameters", "profiled")
    return Table(headings, tuple(rows))


def _costs(operators: Sequence[int], profile: Profile) -> tuple[int, float]:
    """Return the bytes of parameters of some operators, and their seconds."""
    size = sum(profile.graph.operators[op].parameter_bytes for op in operators)
    return size, sum(profile.seconds[op] for op in operators)


def _ends(operators: Sequence[int], graph: OpGraph) -> str:
    first, last = (graph.operators[op].name for op in (operators[0], operators[-1]))
    return first if first == last else f"{first} to {last}"
