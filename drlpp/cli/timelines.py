"""The timeline of a placement: from its schedule, the simulator or a run; as a table or a trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType

from drlpp.capturing.capture import capture, microbatch_size
from drlpp.cli.settings import WorkerSettings
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import RunFailure
from drlpp.io.formatting import predicted_text
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.report.chrome_trace import trace_of
from drlpp.report.tables import Table
from drlpp.runtime import ClusterSession
from drlpp.schedule.analysis.window import Window, completion_times
from drlpp.schedule.schedule import Schedule
from drlpp.schedule.timeline import KINDS, TimedAction, play, spans_of, time_use
from drlpp.simulator import simulate


@dataclass(frozen=True)
class TimelineRun:
    """The timeline of a placement.

    Attributes:
        source: where it comes from, for readers.
        unit: of its times; ``s``, or nothing where a forward takes 1.
        timeline: all actions of a run, those of each worker in the order of ``schedule``.
        schedule: what ran.
        window: the minibatches of it that are measured.
        host_of: the name of every worker's host, and of others.
        error_bar: how far off its times may be, as a share of them, where that is known.
    """

    source: str
    unit: str
    timeline: tuple[TimedAction, ...]
    schedule: Schedule
    window: Window
    host_of: Mapping[int, str] | Sequence[str]
    error_bar: float = 0.0

    @property
    def bounds(self) -> tuple[float, float]:
        """Begin and end of the window."""
        ends: dict[int, list[float]] = {worker: [] for worker in self.schedule.actions}
        for timed in self.timeline:
            ends[timed.worker].append(timed.end)
        marks = self.window.marks(completion_times(self.schedule, ends))
        return marks[0], marks[-1]

    def table(self, title: str) -> RenderableType:
        """Show where every worker's time goes: shares of actions, utilisation and bubble."""
        begin, end = self.bounds
        each = (end - begin) / self.window.length
        held = self.schedule.pipeline.stages_by_worker
        uses = time_use(spans_of(self.timeline), begin, end)
        kinds = [kind for kind in KINDS if any(use.seconds[kind] > 0 for use in uses)]
        rows = []
        for use in uses:
            shares = (*map(use.share, kinds), use.utilisation, use.bubble)
            stages = ", ".join(map(str, held[use.worker]))
            rows.append([str(use.worker), stages, *(f"{share:.1%}" for share in shares)])
        labels = (kind.label for kind in kinds)
        columns = ["worker", "stage", *labels, "utilisation", "bubble"]
        time = predicted_text(each, self.error_bar) if self.unit else f"{each:g}"
        return Group(
            f"{title}: {time} per minibatch",
            Table([f">{column}" for column in columns], rows),
            f"over {self.window.length} minibatches in steady state",
        )

    def trace(self, title: str) -> dict[str, Any]:
        """Return what ui.perfetto.dev draws."""
        pipeline = self.schedule.pipeline
        hosts = {worker: self.host_of[worker] for worker in pipeline.workers}
        return trace_of(self.timeline, pipeline, host_of=hosts, window=self.bounds, title=title)


def from_schedule(document: PlacementFile, minibatches: int) -> TimelineRun:
    """Lay out a schedule: every forward takes 1, every backward 2, and messages no time."""
    captured = capture(document.model, check=False)
    microbatch_size(captured.task, document.method.microbatches)
    plan = document.plan(captured.graph)
    window = plan.window(minibatches)
    schedule = plan.schedule(window.minibatches)
    return TimelineRun(
        "schedule (a forward takes 1, a backward 2)",
        "",
        play(schedule, lambda _, action: action.units),
        schedule,
        window,
        document.cluster.host_name_of,
    )


def from_simulator(document: PlacementFile, minibatches: int, costs: Profile) -> TimelineRun:
    """Simulate what a profile predicts."""
    method, placement = document.method, document.plan(costs.graph).placement
    workload = Workload.of(costs, method)
    played = simulate(workload, document.cluster, placement, method, minibatches)
    return TimelineRun(
        "simulated",
        "s",
        played.timeline,
        played.schedule,
        played.window,
        document.cluster.host_name_of,
        played.error_bar,
    )


def from_run(document: PlacementFile, minibatches: int, workers: WorkerSettings) -> TimelineRun:
    """Measure on workers of this machine or a Ray cluster, as many as the placement's has."""
    captured = capture(document.model)
    plan = document.plan(captured.graph)
    of_session = workers.of_session()
    if workers.cluster is not None:
        of_session["hosts"] = document.cluster
    with ClusterSession(
        captured, method=document.method, optimizer=document.optimizer, **of_session
    ) as session:
        outcome = session.measure(plan, minibatches)
        if isinstance(outcome, FailedMeasurement):
            raise RunFailure(f"the placement failed when it ran: {outcome.reason}")
        # The window is a later one than was asked for where the pipeline was not steady yet.
        timeline, hosts, window = session.timeline, session.host_of, session.window
    assert window is not None
    schedule = plan.schedule(window.minibatches)
    return TimelineRun("as it ran", "s", timeline, schedule, window, hosts)
