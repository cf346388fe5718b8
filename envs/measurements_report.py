"""A readable table of a file of measurements."""

from __future__ import annotations

from pathlib import Path

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from drlpp.envs.memory import read_measurements
from drlpp.measurement import FailedMeasurement, Measurement
from drlpp.report import seconds_text

_SHOWN = 10


def describe_measurements(path: Path) -> RenderableType:
    """The fastest placements of a file of measurements, and why others failed."""
    model, outcomes = read_measurements(path)
    measured = [
        (outcome.seconds_per_minibatch, placement)
        for placement, outcome in outcomes.items()
        if isinstance(outcome, Measurement)
    ]
    measured.sort(key=lambda pair: pair[0])
    failed = [outcome for outcome in outcomes.values() if isinstance(outcome, FailedMeasurement)]
    table = Table(title=f"{escape(model)} · the fastest placements", title_justify="left")
    table.add_column("per minibatch", justify="right")
    table.add_column("configuration")
    table.add_column("operators of each stage on accelerators")
    for seconds, placement in measured[:_SHOWN]:
        stages = "; ".join(
            f"{len(stage.operators)} on {', '.join(map(str, stage.accelerators))}"
            for stage in placement.stages
        )
        table.add_row(seconds_text(seconds), placement.configuration, stages)
    reasons = [f"{outcome.failure}: {escape(outcome.reason)}" for outcome in failed]
    return Group(table, f"{len(outcomes)} placements, {len(failed)} failed", *reasons)
