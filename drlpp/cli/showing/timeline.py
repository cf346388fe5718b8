"""What is made of a timeline: a table of where the time goes, a picture, a trace."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table

from drlpp.cli.showing.timeline_sources import (
    TimelineRun,
    from_run,
    from_schedule,
    from_simulator,
)
from drlpp.errors import InvalidInput
from drlpp.io.documents import replacing, write_atomically
from drlpp.io.formatting import predicted_text
from drlpp.placement.placement_file import PlacementFile
from drlpp.schedule.method import Method
from drlpp.timeline.chrome_trace import trace_of
from drlpp.timeline.figure import draw
from drlpp.timeline.spans import KINDS, spans_of, time_use

_PICTURES = {".png", ".svg"}
_TRACE = ".json"


def timeline_of(
    placement: Path,
    document: PlacementFile,
    source: str,
    method: Method,
    minibatches: int,
    *,
    profile: Path | None = None,
    speeds: tuple[float, ...] | None = None,
    cluster: str | None = None,
) -> TimelineRun:
    """Make the timeline of a placement.

    Args:
        placement: the file, for errors.
        document: its content.
        source: ``schedule``, ``simulator`` or ``run``.
        method: runs the placement.
        minibatches: in the window that is measured.
        profile: costs, for the simulator.
        speeds: relative ones of the accelerators, for the simulator and for workers.
        cluster: address of the Ray cluster to run on; else this machine.

    Raises:
        InvalidInput: an option is for another source, or the placement cannot be run so.
        RunFailure: the run failed.
    """
    if source == "simulator":
        if profile is None:
            raise InvalidInput(
                "the simulator needs what operators cost: --profile profile.json, which "
                "drlpp profile writes"
            )
    elif profile is not None:
        raise InvalidInput(f"--profile is for --timeline simulator, not for --timeline {source}")
    if source == "schedule" and speeds is not None:
        raise InvalidInput("--speeds is for --timeline simulator and --timeline run")
    if source != "run" and cluster is not None:
        raise InvalidInput("--cluster is for --timeline run")
    if source == "schedule":
        return from_schedule(placement, document, method, minibatches)
    if source == "run":
        return from_run(placement, document, method, minibatches, speeds=speeds, cluster=cluster)
    assert profile is not None
    described = document.cluster if speeds is None else document.cluster.with_speeds(speeds)
    return from_simulator(
        placement, document, method, minibatches, profile=profile, cluster=described
    )


def check_ending(path: Path) -> None:
    """Refuse a file that is neither a picture nor a trace.

    Raises:
        InvalidInput: naming the endings that are known.
    """
    if path.suffix.lower() not in _PICTURES | {_TRACE}:
        raise InvalidInput(
            f"{path}: the ending says what to write: .png or .svg a picture, .json a trace for "
            "Perfetto"
        )


def write_timeline(path: Path, recording: TimelineRun, title: str) -> None:
    """Write a picture or a trace, as the ending of ``path`` says.

    Raises:
        InvalidInput: if the ending is another, or nothing can be written there.
    """
    check_ending(path)
    pipeline = recording.schedule.pipeline
    ending = path.suffix.lower()
    if ending == _TRACE:
        trace = trace_of(
            recording.timeline,
            pipeline,
            host_of=recording.host_of,
            window=recording.bounds,
            title=title,
        )
        write_atomically(path, json.dumps(trace).encode())
        return
    figure = draw(recording.timeline, title, pipeline, window=recording.bounds, unit=recording.unit)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=ending[1:], dpi=150)


def time_use_record(recording: TimelineRun) -> dict[str, Any]:
    """Return what :func:`time_use_table` shows, as plain data."""
    begin, end = recording.bounds
    uses = time_use(spans_of(recording.timeline), begin, end)
    return {
        "time_per_minibatch": (end - begin) / recording.window.length,
        "error_bar": recording.error_bar or None,
        "unit": recording.unit,
        "minibatches": recording.window.length,
        "workers": [
            {
                "worker": use.worker,
                "stages": list(recording.schedule.pipeline.stages_by_worker[use.worker]),
                "utilisation": use.utilisation,
                "bubble": use.bubble,
                "shares": {kind.label: use.share(kind) for kind in KINDS if use.seconds[kind] > 0},
            }
            for use in uses
        ],
    }


def time_use_table(recording: TimelineRun, title: str) -> RenderableType:
    """Show for every worker the share of the window that each kind takes.

    Its utilisation and bubble are shown as well.
    """
    begin, end = recording.bounds
    use_of = {use.worker: use for use in time_use(spans_of(recording.timeline), begin, end)}
    kinds = [kind for kind in KINDS if any(use.seconds[kind] > 0 for use in use_of.values())]
    table = Table(box=SIMPLE_HEAD)
    for column in ("worker", "stage"):
        table.add_column(column, justify="right")
    for kind in kinds:
        table.add_column(kind.label, justify="right", header_style=kind.colour)
    for column in ("utilisation", "bubble"):
        table.add_column(column, justify="right")
    for worker, stages in recording.schedule.pipeline.stages_by_worker.items():
        use = use_of[worker]
        shares = [use.share(kind) for kind in kinds]
        shares += [use.utilisation, use.bubble]
        held = ", ".join(map(str, stages))
        table.add_row(str(worker), held, *(f"{share:.1%}" for share in shares))
    length = recording.window.length
    each = (end - begin) / length
    time = predicted_text(each, recording.error_bar) if recording.unit else f"{each:g}"
    return Group(
        f"{title}: {time} per minibatch",
        table,
        f"over {length} minibatches in steady state",
    )
