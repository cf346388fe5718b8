"""Where a placement's timeline comes from: its schedule alone, the simulator, or a real run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from drlpp.capturing.capture import capture, microbatch_size
from drlpp.capturing.graph import OpGraph
from drlpp.costs.cost_table import read_profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, InvalidPlacement, RunFailure
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.schedule.actions import Action
from drlpp.schedule.analysis.window import Window, completion_times
from drlpp.schedule.method import Method
from drlpp.schedule.schedule import Schedule
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster
from drlpp.timeline.timeline import TimedAction, play


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


def from_schedule(
    path: Path, document: PlacementFile, method: Method, minibatches: int
) -> TimelineRun:
    """Lay out a schedule in units.

    Every forward takes 1 and every backward 2, and messages arrive at once.

    Raises:
        InvalidInput: if the placement is not one of its model, or the method cannot run on it.
    """
    captured = capture(document.model, check=False)
    graph = captured.graph
    microbatch_size(captured.task, method.microbatches)
    plan = _plan(path, document, graph, method)
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


def from_simulator(
    path: Path,
    document: PlacementFile,
    method: Method,
    minibatches: int,
    *,
    profile: Path,
    cluster: Cluster,
) -> TimelineRun:
    """Simulate what a profile predicts.

    Raises:
        InvalidInput: if the profile is of another model, the cluster too small, or the method
            cannot run on the placement.
    """
    costs = read_profile(profile)
    if costs.graph.fingerprint != document.graph_fingerprint:
        raise InvalidInput(
            f"{profile}: the profile is of {costs.graph.model} (graph {costs.graph.fingerprint}), "
            f"but {path} is a placement of {document.model} (graph {document.graph_fingerprint}); "
            "profile that model"
        )
    plan = _plan(path, document, costs.graph, method)
    # The cluster is not the file's own.
    plan.placement.validate_for(costs.graph, cluster.accelerators)
    played = simulate(Workload.of(costs, method), cluster, plan.placement, method, minibatches)
    return TimelineRun(
        source="simulated",
        unit="s",
        timeline=played.timeline,
        schedule=played.schedule,
        window=played.plan.window,
        host_of=_hosts(cluster, played.pipeline.workers),
        error_bar=played.error_bar,
    )


def from_run(
    path: Path,
    document: PlacementFile,
    method: Method,
    minibatches: int,
    *,
    speeds: Sequence[float] | None = None,
    cluster: str | None = None,
) -> TimelineRun:
    """Measure on workers of this machine or a Ray cluster, as many as the placement's has.

    Raises:
        InvalidInput: if the placement cannot be run.
        RunFailure: if it failed.
    """
    from drlpp.runtime import ClusterSession

    captured = capture(document.model)
    plan = _plan(path, document, captured.graph, method)
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
        timeline, hosts = session.timeline, session.host_of
        # It is a later one than was asked for where the pipeline was not steady yet.
        window = session.window
    assert window is not None
    return TimelineRun(
        source="as it ran",
        unit="s",
        timeline=timeline,
        schedule=plan.schedule(window.minibatches),
        window=window,
        host_of={worker: hosts[worker] for worker in plan.pipeline.workers},
    )


def _plan(path: Path, document: PlacementFile, graph: OpGraph, method: Method) -> ExecutionPlan:
    try:
        return document.plan(graph, method)
    except InvalidPlacement as error:
        raise InvalidPlacement(f"{path}: {error}") from None


def _hosts(cluster: Cluster, workers: Sequence[int]) -> dict[int, str]:
    return {worker: cluster.host_name_of[worker] for worker in workers}
