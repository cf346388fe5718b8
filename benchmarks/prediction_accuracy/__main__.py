"""How well the simulator and the planners' rule predict what live workers measure.

For every model: some planners' placements and many random ones, replicated and branching ones among
them, on workers that emulate equal accelerators: each takes its processor time divided by
``--speed``, and sleeps the rest of it, so that all compute at the same time on few cores. Every
placement is measured several times, in turns, and predicted from one profile.

    python -m benchmarks.prediction_accuracy --document benchmarks/prediction_accuracy/README.md
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.options import DocumentOption, JsonOption
from benchmarks.prediction_accuracy.report import (
    Prediction,
    draw_scatter,
    each,
    summary,
    write_accuracy,
)
from benchmarks.report import terminal
from drlpp.cli.command_line import build_console, run_program
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import BASELINES, PLANNERS, PlanningProblem
from drlpp.planners.search.random_search import random_placement
from drlpp.runtime import ClusterSession
from drlpp.simulator import simulate

MODELS = ("alexnet", "vgg16", "resnet50", "gnmt4")
FIGURE = Path("docs/figures/prediction-accuracy.png")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Settings:
    """Of the measurements.

    Attributes:
        workers: emulated accelerators.
        speed: of each.
        placements: of every model.
        minibatches: of a measurement.
        times: measurements of a placement.
        seed: of the random placements.
    """

    workers: int
    speed: float
    placements: int
    minibatches: int
    times: int
    seed: int


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Names in the zoo.")] = ",".join(MODELS),
    workers: Annotated[int, typer.Option(help="Emulated accelerators.")] = 4,
    speed: Annotated[float, typer.Option(help="Of each, relative to a core.")] = 0.15,
    placements: Annotated[int, typer.Option(help="Of every model.")] = 6,
    minibatches: Annotated[int, typer.Option(help="Of a measurement.")] = 12,
    times: Annotated[int, typer.Option(help="Measurements of a placement.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the random placements.")] = 0,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure placements, predict them, and compare."""
    settings = Settings(workers, speed, placements, minibatches, times, seed)
    console = build_console()
    found = [p for model in models.split(",") for p in compare(model, settings)]
    if as_json:
        print(json.dumps([asdict(prediction) for prediction in found], indent=1))
    else:
        console.print(terminal(each(found), names=3), terminal(summary(found)))
    if document is not None:
        draw_scatter(found, FIGURE)
        write_accuracy(document, found)
        console.print(f"written to {document} and {FIGURE}")


def compare(model: str, settings: Settings) -> list[Prediction]:
    """Return measured and predicted seconds of the placements of one model."""
    workers = settings.workers
    with ClusterSession(model, workers, speeds=[settings.speed] * workers) as session:
        profile, cluster = session.profile()
        problem = PlanningProblem(Workload.of(profile), cluster)
        chosen = list(choose_placements(problem, settings))
        seconds: list[list[float]] = [[] for _ in chosen]
        for _ in range(settings.times):
            for number, placement in enumerate(track(chosen, model, transient=True)):
                outcome = session.measure(placement, settings.minibatches)
                if isinstance(outcome, Measurement):
                    seconds[number].append(outcome.seconds_per_minibatch)
    return [
        Prediction(
            model=model,
            configuration=placement.configuration,
            branching=branches(problem, placement),
            measured=median(times),
            simulated=simulate(
                problem.workload, cluster, placement, session.method, settings.minibatches
            ).seconds_per_minibatch,
            by_rule=problem.predict(placement).seconds_per_minibatch,
        )
        for placement, times in zip(chosen, seconds, strict=True)
        if times
    ]


def choose_placements(problem: PlanningProblem, settings: Settings) -> Iterator[Placement]:
    """Yield the planners' placements, then random ones that differ from all before.

    A random placement is nearly always far from balanced, and users run others. So every second one
    is the best of many; every third has branches, if any do.
    """
    known: set[Placement] = set()
    for name in BASELINES:
        placement = PLANNERS[name](problem).placement
        if placement not in known:
            known.add(placement)
            yield placement
    draw = random.Random(settings.seed)
    for number in range(20 * settings.placements):
        if len(known) >= settings.placements:
            break
        candidates = [random_placement(problem, draw) for _ in range(1 + 30 * (number % 2))]
        if number % 3 == 0:
            candidates = [random_placement(problem, draw) for _ in range(200)]
            candidates = [p for p in candidates if branches(problem, p)] or candidates
        placement = min(candidates, key=lambda p: problem.predict(p).seconds_per_minibatch)
        if placement not in known:
            known.add(placement)
            yield placement


def branches(problem: PlanningProblem, placement: Placement) -> bool:
    """Return whether two stages run side by side: neither needs the other."""
    order = problem.workload.order()
    stage_of = placement.stage_of_operator(len(problem.workload))
    edges = {(stage_of[a], stage_of[b]) for a, b in order.edges}
    return any((k, k + 1) not in edges for k in range(len(placement.stages) - 1))


if __name__ == "__main__":
    run_program(app, "benchmarks.prediction_accuracy")
