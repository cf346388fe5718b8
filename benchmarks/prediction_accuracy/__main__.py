"""How well the simulator and the planners' rule predict what live workers measure.

For every model: some planners' placements and many random ones, replicated and branching ones among
them, on workers that emulate equal accelerators: by dilation each takes its processor time divided
by ``--speed``, and sleeps the rest of it, so that all compute at the same time on few cores; by
quotas the kernel gives each that part of a core. Every placement is measured several times, in
turns, and predicted from one profile: from operators alone, and with what the profile's short runs
say. None of the placements is one of these runs, so all are held out.

    python -m benchmarks.prediction_accuracy --document benchmarks/prediction_accuracy/README.md
    python -m benchmarks.prediction_accuracy --emulation quotas        # needs root
"""

from __future__ import annotations

import json
import random
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.progress import track

from benchmarks.emulated_cluster import control_groups
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
from drlpp.costs.profile import NO_FACTORS, Profile
from drlpp.costs.short_runs import short_placements
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import BASELINES, PLANNERS, PlanningProblem
from drlpp.planners.search.random_search import random_placement
from drlpp.runtime import ClusterSession
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster

MODELS = ("alexnet", "vgg16", "resnet50", "gnmt4", "transformer")
FIGURE = Path("docs/figures/prediction-accuracy.png")

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


class Emulation(StrEnum):
    """Of slower accelerators."""

    DILATION = "dilation"
    QUOTAS = "quotas"


@dataclass(frozen=True)
class Settings:
    """Of the measurements.

    Attributes:
        emulation: by what accelerators are slow.
        workers: emulated accelerators.
        speed: of each.
        placements: of every model.
        minibatches: of a measurement.
        times: measurements of a placement.
        seed: of the random placements.
    """

    emulation: Emulation
    workers: int
    speed: float
    placements: int
    minibatches: int
    times: int
    seed: int


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Names in the zoo.")] = ",".join(MODELS),
    emulation: Annotated[
        Emulation, typer.Option(help="Of accelerators; quotas are control groups, and need root.")
    ] = Emulation.DILATION,
    workers: Annotated[int, typer.Option(help="Emulated accelerators.")] = 4,
    speed: Annotated[float, typer.Option(help="Of each, relative to a core.")] = 0.15,
    placements: Annotated[int, typer.Option(help="Of every model.")] = 20,
    minibatches: Annotated[int, typer.Option(help="Of a measurement.")] = 12,
    times: Annotated[int, typer.Option(help="Measurements of a placement.")] = 2,
    seed: Annotated[int, typer.Option(help="Of the random placements.")] = 0,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure placements, predict them, and compare."""
    settings = Settings(emulation, workers, speed, placements, minibatches, times, seed)
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


@contextmanager
def profiled(model: str, settings: Settings) -> Iterator[tuple[ClusterSession, Profile, Cluster]]:
    """Yield workers of a model, its profile, and what they are for planners."""
    dilates = settings.emulation is Emulation.DILATION
    quotas = [settings.speed] * settings.workers
    with ExitStack() as stack:
        session = stack.enter_context(
            ClusterSession(model, settings.workers, speeds=quotas if dilates else None)
        )
        if dilates:
            yield session, *session.profile()
            return
        # The workers start with the first placement.
        session.measure(Placement.from_assignment([0] * len(session.graph), [0]), 1)
        stack.enter_context(control_groups(quotas)).hold(session.process_ids)
        profile, cluster = session.profile()
        # Each has its own part of a core.
        hosts = [host.model_copy(update={"cores": None}) for host in cluster.hosts]
        yield session, profile, cluster.with_hosts(hosts)


def compare(model: str, settings: Settings) -> list[Prediction]:
    """Return measured and predicted seconds of the placements of one model."""
    with profiled(model, settings) as (session, profile, cluster):
        problem = PlanningProblem(Workload.of(profile), cluster)
        run = set(short_placements(profile, range(settings.workers)))
        run |= set(short_placements(profile, range(2)))
        chosen = list(choose_placements(problem, settings, run))
        seconds: list[list[float]] = [[] for _ in chosen]
        for _ in range(settings.times):
            for number, placement in enumerate(track(chosen, model, transient=True)):
                outcome = session.measure(placement, settings.minibatches)
                if isinstance(outcome, Measurement):
                    seconds[number].append(outcome.seconds_per_minibatch)

    def predicted(workload: Workload, placement: Placement) -> float:
        return simulate(workload, cluster, placement, session.method).seconds_per_minibatch

    whole = problem.workload
    alone = replace(whole, in_pipeline=NO_FACTORS, replicated=NO_FACTORS)
    return [
        Prediction(
            model=model,
            configuration=placement.configuration,
            branching=branches(problem, placement),
            measured=median(times),
            simulated=predicted(whole, placement),
            alone=predicted(alone, placement),
            by_rule=problem.predict(placement).seconds_per_minibatch,
            spread=max(
                factors.spread
                for factors in whole.run_factors([len(s.accelerators) for s in placement.stages])
            ),
        )
        for placement, times in zip(chosen, seconds, strict=True)
        if times
    ]


def choose_placements(
    problem: PlanningProblem, settings: Settings, but: Collection[Placement]
) -> Iterator[Placement]:
    """Yield the planners' placements, then random ones that differ from all before and ``but``.

    A random placement is nearly always far from balanced, and users run others. So every second one
    is the best of many; every third has branches, if any do.
    """
    known = set(but)
    for name in BASELINES:
        placement = PLANNERS[name](problem).placement
        if placement not in known:
            known.add(placement)
            yield placement
    draw = random.Random(settings.seed)
    for number in range(20 * settings.placements):
        if len(known) - len(but) >= settings.placements:
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
