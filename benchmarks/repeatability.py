"""How well does a measurement repeat? The same placements, ten times each in one session.

    make bench        or        python -m benchmarks.repeatability --model alexnet --times 10

The placements take turns, so that drift of the machine hits all alike. Reported for each: the
median, the coefficient of variation (standard deviation over mean) of the ten measurements, and
what one deployment costs.
"""

from __future__ import annotations

import statistics
from typing import Annotated

import typer
from rich.table import Table

from drlpp.cli.command_line import Size, SizeOption, build_console, run_program
from drlpp.cli.tables import seconds_text
from drlpp.costs.workload import Workload
from drlpp.models.task import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.planners import BASELINES, PLANNERS, PlanningProblem
from drlpp.runtime import ClusterSession

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    model: Annotated[str, typer.Option(help="A name in the zoo.")] = "alexnet",
    size: SizeOption = Size.SMALL,
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 4,
    minibatches: Annotated[int, typer.Option(help="Minibatches of a measurement.")] = 30,
    times: Annotated[int, typer.Option(help="Measurements of each placement.")] = 10,
) -> None:
    """Measure the planners' placements again and again."""
    console = build_console()
    with ClusterSession(ModelReference.named(model, size), workers) as session:
        profile, cluster = session.profile()
        problem = PlanningProblem(Workload.of(profile), cluster)
        placements = {name: PLANNERS[name](problem).placement for name in BASELINES}
        seconds: dict[str, list[float]] = {name: [] for name in placements}
        for _ in range(times):
            for name, placement in placements.items():
                outcome = session.measure(placement, minibatches)
                if isinstance(outcome, Measurement):
                    seconds[name].append(outcome.seconds_per_minibatch)
        measurements = sum(len(values) for values in seconds.values())
        deploying = session.spent.deploying_seconds / max(measurements, 1)
    table = Table(title=f"{model} on {workers} workers, {times} × {minibatches} minibatches")
    for column in ("placement", "configuration", "median", "coefficient of variation"):
        table.add_column(column)
    for name, values in seconds.items():
        variation = statistics.stdev(values) / statistics.mean(values)
        table.add_row(
            name,
            placements[name].configuration,
            seconds_text(statistics.median(values)),
            f"{variation:.1%}",
        )
    console.print(table)
    console.print(f"deploying a placement: {seconds_text(deploying)} on average")


if __name__ == "__main__":
    run_program(app, "repeatability.py")
