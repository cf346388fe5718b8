"""The timeline of a placement: from its schedule, the simulator or a run; as a table or a file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType

from drlpp.capturing.capture import capture, microbatch_size
from drlpp.costs.cost_table import read_profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, InvalidPlacement, RunFailure
from drlpp.io.documents import write_atomically
from drlpp.io.formatting import predicted_text
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.report.chrome_trace import trace_of
from drlpp.report.tables import table_of
from drlpp.schedule.actions import Action
from drlpp.schedule.analysis.window import Window, completion_times
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import KINDS, TimedAction, play, spans_of, time_use
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster


@dataclass(frozen=True)
class TimelineRun:
    """The timeline of a placement.

    Attributes:
        source: where it comes from, for readers.
        unit: of its times; ``s``, or nothing where a forward takes 1.
        timeline: all actions of a run, those of each worker in the order of ``schedule``.
        schedule: what ran.
        window: the minibatches of it that are measured.
        host_of: the name of every worker's host.
        error_bar: how far off its times may be, as a share of them, where that is known.
    """

    source: str
    unit: str
    timeline: tuple[TimedAction, ...]
    schedule: Schedule
    window: Window
    host_of: dict[int, str]
    error_bar: float = 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Begin and end of the window."""
        ends: dict[int, list[float]] = {worker: [] for worker in self.schedule.actions}
        for timed in self.timeline:
            ends[timed.worker].append(timed.end)
        marks = self.window.marks(completion_times(self.schedule, ends))
        return marks[0], marks[-1]


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
    if source == "simulator" and profile is None:
        raise InvalidInput(
            "the simulator needs what operators cost: --profile profile.json, which drlpp profile "
            "writes"
        )
    for option, value, sources in (
        ("profile", profile, ("simulator",)),
        ("speeds", speeds, ("simulator", "run")),
        ("cluster", cluster, ("run",)),
    ):
        if value is not None and source not in sources:
            raise InvalidInput(f"--{option} is for --timeline {' and --timeline '.join(sources)}")
    try:
        if profile is not None:
            hosts = document.cluster if speeds is None else document.cluster.with_speeds(speeds)
            return _from_simulator(placement, document, method, minibatches, profile, hosts)
        if source == "run":
            return _from_run(document, method, minibatches, speeds, cluster)
        return from_schedule(document, method, minibatches)
    except InvalidPlacement as error:
        raise InvalidPlacement(f"{placement}: {error}") from None


def from_schedule(document: PlacementFile, method: Method, minibatches: int) -> TimelineRun:
    """Lay out a schedule in units.

    Every forward takes 1 and every backward 2, and messages arrive at once.

    Raises:
        InvalidInput: the placement is not one of its model, or the method cannot run on it.
    """
    captured = capture(document.model, check=False)
    microbatch_size(captured.task, method.microbatches)
    plan = document.plan(captured.graph, method)
    window = plan.window(minibatches)
    schedule = plan.schedule(window.minibatches)

    def units(worker: int, action: Action) -> float:
        return action.units

    return TimelineRun(
        source="schedule (a forward takes 1, a backward 2)",
        unit="",
        timeline=play(schedule, units),
        schedule=schedule,
        window=window,
        host_of=_hosts(document.cluster, plan.pipeline.workers),
    )


def _from_simulator(
    path: Path,
    document: PlacementFile,
    method: Method,
    minibatches: int,
    profile: Path,
    cluster: Cluster,
) -> TimelineRun:
    """Simulate what a profile predicts."""
    costs = read_profile(profile)
    if costs.graph.fingerprint != document.graph_fingerprint:
        raise InvalidInput(
            f"{profile}: the profile is of {costs.graph.model} (graph {costs.graph.fingerprint}), "
            f"but {path} is a placement of {document.model} (graph {document.graph_fingerprint}); "
            "profile that model"
        )
    plan = document.plan(costs.graph, method)
    # The cluster is not the file's own.
    plan.placement.validate_for(costs.graph, cluster.accelerators)
    played = simulate(Workload.of(costs, method), cluster, plan.placement, method, minibatches)
    return TimelineRun(
        source="simulated",
        unit="s",
        timeline=played.timeline,
        schedule=played.schedule,
        window=played.window,
        host_of=_hosts(cluster, played.pipeline.workers),
        error_bar=played.error_bar,
    )


def _from_run(
    document: PlacementFile,
    method: Method,
    minibatches: int,
    speeds: Sequence[float] | None,
    cluster: str | None,
) -> TimelineRun:
    """Measure on workers of this machine or a Ray cluster, as many as the placement's has."""
    from drlpp.runtime import ClusterSession

    captured = capture(document.model)
    plan = document.plan(captured.graph, method)
    with ClusterSession(
        captured,
        document.cluster.accelerators,
        method=method,
        optimizer=document.optimizer,
        speeds=speeds,
        cluster=cluster,
        hosts=None if cluster is None else document.cluster,
    ) as session:
        outcome = session.measure(plan, minibatches)
        if isinstance(outcome, FailedMeasurement):
            raise RunFailure(f"the placement failed when it ran: {outcome.reason}")
        # The window is a later one than was asked for where the pipeline was not steady yet.
        timeline, hosts, window = session.timeline, session.host_of, session.window
    assert window is not None
    return TimelineRun(
        source="as it ran",
        unit="s",
        timeline=timeline,
        schedule=plan.schedule(window.minibatches),
        window=window,
        host_of={worker: hosts[worker] for worker in plan.pipeline.workers},
    )


def _hosts(cluster: Cluster, workers: Sequence[int]) -> dict[int, str]:
    return {worker: cluster.host_name_of[worker] for worker in workers}


def check_ending(path: Path) -> None:
    """Refuse a file whose name does not end as a trace's.

    Raises:
        InvalidInput: naming the ending that is right.
    """
    if path.suffix.lower() != ".json":
        raise InvalidInput(f"{path}: a timeline is written as a trace for Perfetto; name it .json")


def write_timeline(path: Path, run: TimelineRun, title: str) -> None:
    """Write a trace, which ui.perfetto.dev draws.

    Raises:
        InvalidFile: nothing can be written there.
    """
    pipeline = run.schedule.pipeline
    trace = trace_of(run.timeline, pipeline, host_of=run.host_of, window=run.bounds, title=title)
    write_atomically(path, json.dumps(trace).encode())


def time_use_record(recording: TimelineRun) -> dict[str, Any]:
    """Return what :func:`time_use_table` shows, as plain data."""
    begin, end = recording.bounds
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
            for use in time_use(spans_of(recording.timeline), begin, end)
        ],
    }


def time_use_table(recording: TimelineRun, title: str) -> RenderableType:
    """Show for every worker the share of the window that each kind takes.

    Its utilisation and bubble are shown as well.
    """
    record = time_use_record(recording)
    workers, each = record["workers"], record["time_per_minibatch"]
    kinds = [kind.label for kind in KINDS if any(kind.label in one["shares"] for one in workers)]
    rows = []
    for one in workers:
        shares = [
            *(one["shares"].get(kind, 0) for kind in kinds),
            one["utilisation"],
            one["bubble"],
        ]
        held = ", ".join(map(str, one["stages"]))
        rows.append([str(one["worker"]), held, *(f"{share:.1%}" for share in shares)])
    columns = ["worker", "stage", *kinds, "utilisation", "bubble"]
    time = predicted_text(each, recording.error_bar) if recording.unit else f"{each:g}"
    return Group(
        f"{title}: {time} per minibatch",
        table_of([f">{column}" for column in columns], rows),
        f"over {recording.window.length} minibatches in steady state",
    )
