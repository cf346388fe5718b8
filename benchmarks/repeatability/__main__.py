"""How well does a measurement repeat? The same placements, ten times each, in turns.

    make bench        or        python -m benchmarks.repeatability --model alexnet --times 10
    python -m benchmarks.repeatability --cluster auto      # with Ray and without

The placements take turns, so that drift of the machine hits all alike. Reported for each: the
median, the coefficient of variation (standard deviation over mean) of the ten measurements, and
what one deployment costs. With a Ray cluster of this machine alone, a session on it and one without
Ray measure every placement one after the other, now this first, now that; their ratio is the
geometric mean of the pairs' ratios, and what is said of it follows from its 95% confidence
interval. Then also what Ray's processes take of a core, while nothing is measured and meanwhile.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Annotated

import typer
from pandas import DataFrame

from benchmarks.learning.comparisons import Verdict, compare
from benchmarks.options import WorkersClusterOption
from benchmarks.repeatability.ray_load import RayLoad
from benchmarks.report import terminal
from drlpp.cli.command_line import Size, SizeOption, build_console, run_program
from drlpp.costs.workload import Workload
from drlpp.errors import RunFailure
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement import Placement
from drlpp.planners import BASELINES, PLANNERS, PlanningProblem
from drlpp.runtime import ClusterSession

_IDLE_SECONDS = 20.0
_NOTHING = "nothing is measured"
_ALONE, _RAY = "without Ray", "with Ray"
_SAID = {
    Verdict.SHOWS: "slower",
    Verdict.DOES_NOT_SHOW: "faster",
    Verdict.WITHIN_NOISE: "noise",
}

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    model: Annotated[str, typer.Option(help="A name in the zoo.")] = "alexnet",
    size: SizeOption = Size.SMALL,
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 4,
    minibatches: Annotated[int, typer.Option(help="Minibatches of a measurement.")] = 30,
    times: Annotated[int, typer.Option(min=2, help="Measurements of each placement.")] = 10,
    cluster: WorkersClusterOption = None,
) -> None:
    """Measure the planners' placements again and again."""
    console = build_console()
    with ExitStack() as ending:
        alone = ending.enter_context(ClusterSession(ModelReference.named(model, size), workers))
        sessions = {_ALONE: alone}
        profile, described = alone.profile()
        problem = PlanningProblem(Workload.of(profile), described)
        placements = {name: PLANNERS[name](problem).placement for name in BASELINES}
        load = None
        if cluster is not None:
            sessions[_RAY] = ending.enter_context(
                ClusterSession(alone.captured, workers, cluster=cluster)
            )
            sessions[_RAY].worker_group.prepare()
            load = RayLoad()
            with load.during(_NOTHING):
                time.sleep(_IDLE_SECONDS)
        seconds = measured(sessions, placements, minibatches, times, load)
        deploying = {
            where: session.spent.deploying_seconds / (times * len(placements))
            for where, session in sessions.items()
        }
    title = f"{model} on {workers} workers, {times} × {minibatches} minibatches"
    console.print(terminal(table_of(placements, seconds), title, names=len(sessions) + 1))
    for where, spent in deploying.items():
        console.print(f"deploying a placement, {where}: {seconds_text(spent)} on average")
    if load is not None:
        console.print(f"Ray's {load.processes} processes, of a core:")
        for what, share in load.shares.items():
            console.print(f"  while {what}: {share:.1%}")


Seconds = Mapping[str, Mapping[str, Sequence[float]]]
"""Per minibatch, of every measurement: by placement, and by where it was."""


def measured(
    sessions: Mapping[str, ClusterSession],
    placements: Mapping[str, Placement],
    minibatches: int,
    times: int,
    load: RayLoad | None = None,
) -> Seconds:
    """Measure placements in turns, each in all sessions one after the other.

    Raises:
        RunFailure: a measurement failed.
    """
    seconds: dict[str, dict[str, list[float]]] = {
        name: {where: [] for where in sessions} for name in placements
    }
    for number in range(times):
        for name, placement in placements.items():
            for where in list(sessions)[:: -1 if number % 2 else 1]:
                with ExitStack() as counting:
                    if load is not None:
                        counting.enter_context(load.during(f"a session {where} measures"))
                    outcome = sessions[where].measure(placement, minibatches)
                if isinstance(outcome, FailedMeasurement):
                    raise RunFailure(f"{name}, {where}: {outcome.failure}: {outcome.reason}")
                seconds[name][where].append(outcome.seconds_per_minibatch)
    return seconds


def table_of(placements: Mapping[str, Placement], seconds: Seconds) -> DataFrame:
    """Return a row for every placement and where it was measured."""
    rows = []
    for name, found in seconds.items():
        for where, values in found.items():
            spread = statistics.stdev(values) / statistics.mean(values)
            row = {"placement": name, "configuration": placements[name].configuration}
            if _RAY in found:
                row["session"] = where
            row["median"] = seconds_text(statistics.median(values))
            row["coefficient of variation"] = f"{spread:.1%}"
            if _RAY in found:
                row["with over without"] = compared(found) if where == _RAY else ""
            rows.append(row)
    return DataFrame(rows)


def compared(seconds: Mapping[str, Sequence[float]]) -> str:
    """Return how much slower the session with Ray is than the other, and whether that shows."""
    logarithms = {
        where: dict(enumerate(map(math.log, values))) for where, values in seconds.items()
    }
    found = compare(logarithms[_RAY], logarithms[_ALONE])
    assert found is not None
    return f"{math.exp(found.mean):.3f} ± {found.standard_error:.3f}, {_SAID[found.verdict]}"


if __name__ == "__main__":
    run_program(app, "benchmarks.repeatability")
