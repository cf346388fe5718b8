"""A readable table of a file of measurements."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table

from drlpp.io.formatting import seconds_text
from drlpp.placement.measurement import FailedMeasurement, Measurement, median_measurement
from drlpp.placement.measurements_file import read_measurements
from drlpp.placement.placement import Placement
from drlpp.reporting.placement_tables import stages_text
from drlpp.schedule.method import Method

_SHOWN = 10

_Ran = tuple[Placement, Method | None]
"""A placement and its method, None in files that do not tell it."""


def describe_measurements(path: Path) -> RenderableType:
    """Show the fastest placements of a file by their median, and why others failed."""
    header, entries = read_measurements(path)
    runs: dict[_Ran, list[Measurement]] = {}
    failures: dict[_Ran, FailedMeasurement] = {}
    for entry in entries:
        ran = entry.placement, entry.method or header.method
        if isinstance(entry.outcome, Measurement):
            runs.setdefault(ran, []).append(entry.outcome)
            # It was measured again after a failure that it was not to blame for.
            failures.pop(ran, None)
        else:
            failures[ran] = entry.outcome
    measured = [
        (median_measurement(outcomes).seconds_per_minibatch, ran)
        for ran, outcomes in runs.items()
        if ran not in failures
    ]
    cut_short = sum(outcomes[-1].cut_short for outcomes in runs.values())
    measured.sort(key=lambda pair: pair[0])
    failed = failures.values()
    table = Table(title=f"{header.model} · the fastest placements", title_justify="left")
    table.add_column("per minibatch", justify="right")
    table.add_column("configuration")
    table.add_column("operators of each stage on accelerators")
    several = len({method for _, method in (*runs, *failures)}) > 1
    if several:
        table.add_column("method")
    for seconds, (placement, method) in measured[:_SHOWN]:
        row = [seconds_text(seconds), placement.configuration, stages_text(placement)]
        table.add_row(*row, *([str(method)] if several else []))
    reasons = [f"{outcome.failure}: {outcome.reason}" for outcome in failed]
    counts = f"{len(measured) + len(failed)} placements, {len(failed)} failed"
    if cut_short:
        counts += f", {cut_short} run less often, since they were slow"
    return Group(table, counts, *reasons)
