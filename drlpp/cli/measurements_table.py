"""A readable table of a file of measurements."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.table import Table

from drlpp.cli.tables import seconds_text
from drlpp.envs.measurements_file import read_measurements
from drlpp.placement.measurement import FailedMeasurement, Measurement, median_measurement
from drlpp.placement.placement import Placement

_SHOWN = 10


def describe_measurements(path: Path) -> RenderableType:
    """The fastest placements of a file of measurements by their median, and why others failed."""
    header, entries = read_measurements(path)
    runs: dict[Placement, list[Measurement]] = {}
    failures: dict[Placement, FailedMeasurement] = {}
    for entry in entries:
        if isinstance(entry.outcome, Measurement):
            runs.setdefault(entry.placement, []).append(entry.outcome)
            # It was measured again after a failure that it was not to blame for.
            failures.pop(entry.placement, None)
        else:
            failures[entry.placement] = entry.outcome
    measured = [
        (median_measurement(outcomes).seconds_per_minibatch, placement)
        for placement, outcomes in runs.items()
        if placement not in failures
    ]
    measured.sort(key=lambda pair: pair[0])
    failed = failures.values()
    table = Table(title=f"{header.model} · the fastest placements", title_justify="left")
    table.add_column("per minibatch", justify="right")
    table.add_column("configuration")
    table.add_column("operators of each stage on accelerators")
    for seconds, placement in measured[:_SHOWN]:
        stages = "; ".join(
            f"{len(stage.operators)} on {', '.join(map(str, stage.accelerators))}"
            for stage in placement.stages
        )
        table.add_row(seconds_text(seconds), placement.configuration, stages)
    reasons = [f"{outcome.failure}: {outcome.reason}" for outcome in failed]
    return Group(table, f"{len(measured) + len(failed)} placements, {len(failed)} failed", *reasons)
