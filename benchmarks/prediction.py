"""How well do the simulator and the planners' rule predict what live workers measure?

For every model: some planners' placements and many random ones, replicated and branching ones among
them, on workers that emulate equal accelerators by dilation: each takes its processor time divided
by its speed, and sleeps the rest of it, so that all compute at the same time on few cores. Every
placement is measured several times, in turns, and predicted from one profile: from operators alone,
and with what the profile's short runs say. None of the placements is one of these runs, so all are
held out.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from matplotlib.figure import Figure
from pandas import DataFrame

from benchmarks.made_up import random_placement
from benchmarks.study import Needs, Row, Study
from drlpp.costs.profile import NO_FACTORS
from drlpp.costs.short_runs import short_placements
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem
from drlpp.runtime import ClusterSession
from drlpp.simulator import simulate

MODELS = ("alexnet", "vgg16", "resnet50", "gnmt4", "gpt2")


class Case(Record):
    """What is measured.

    Attributes:
        model: its name in the zoo.
        workers: emulated accelerators.
        speed: of each.
        placements: of the model.
        minibatches: of a measurement.
        times: measurements of a placement.
        seed: of the random placements.
    """

    model: str
    workers: int = 4
    speed: float = 0.15
    placements: int = 20
    minibatches: int = 12
    times: int = 2
    seed: int = 0


class Prediction(Record):
    """A placement: seconds per minibatch as measured, simulated, and by the planners' rule.

    ``alone`` is simulated without what short runs said; ``spread`` is the error bar that is printed
    with ``simulated``, relative.
    """

    configuration: str
    branching: bool
    measured: float
    simulated: float
    alone: float
    by_rule: float
    spread: float

    @property
    def error(self) -> float:
        """Of the simulator, relative to what was measured; negative if it is too fast."""
        return self.simulated / self.measured - 1


class Compared(Row):
    """A model's placements, measured and predicted."""

    case: Case
    predictions: tuple[Prediction, ...]


class PredictionStudy(Study[Case, Compared]):
    """Measured against simulated seconds per minibatch."""

    name = "prediction"
    question = "How well do predictions match measurements?"
    row = Compared
    needs = Needs(quiet=True, hours=1)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every model."""
        if short:
            return [Case(model="awd_lm", workers=2, placements=4, minibatches=4, times=1)]
        return [Case(model=model, seed=seed) for seed in range(seeds or 1) for model in MODELS]

    def run(self, case: Case) -> Compared:
        """Measure the placements of a model, and predict them."""
        return compare(case)

    def table(self, rows: Sequence[Compared]) -> Mapping[str, DataFrame]:
        """Return errors and correlations of every model."""
        return {"Accelerators by dilation": summary(rows)}

    def figure(self, rows: Sequence[Compared], path: Path) -> bool:
        """Draw simulated over measured seconds."""
        draw_scatter(rows, path)
        return True


def compare(case: Case) -> Compared:
    """Return measured and predicted seconds of the placements of one model."""
    speeds = [case.speed] * case.workers
    with ClusterSession(case.model, case.workers, speeds=speeds) as session:
        profile, cluster = session.profile()
        problem = PlanningProblem(Workload.of(profile), cluster)
        run = set(short_placements(profile, range(case.workers)))
        run |= set(short_placements(profile, range(2)))
        chosen = list(choose_placements(problem, case, run))
        seconds: list[list[float]] = [[] for _ in chosen]
        for _ in range(case.times):
            for number, placement in enumerate(chosen):
                outcome = session.measure(placement, case.minibatches)
                if isinstance(outcome, Measurement):
                    seconds[number].append(outcome.seconds_per_minibatch)

    def predicted(workload: Workload, placement: Placement) -> float:
        return simulate(workload, cluster, placement, session.method).seconds_per_minibatch

    whole = problem.workload
    alone = replace(whole, in_pipeline=NO_FACTORS, replicated=NO_FACTORS)
    predictions = [
        Prediction(
            configuration=placement.configuration,
            branching=branches(problem, placement),
            measured=median(times),
            simulated=predicted(whole, placement),
            alone=predicted(alone, placement),
            by_rule=problem.predict(placement).seconds_per_minibatch,
            spread=whole.error_bar(placement),
        )
        for placement, times in zip(chosen, seconds, strict=True)
        if times
    ]
    return Compared(case=case, predictions=tuple(predictions))


def choose_placements(
    problem: PlanningProblem, case: Case, but: Collection[Placement]
) -> Iterator[Placement]:
    """Yield the planners' placements, then random ones that differ from all before and ``but``.

    A random placement is nearly always far from balanced, and users run others. So every second one
    is the best of many; every third has branches, if any do.
    """
    known = set(but)
    for name in PLANNERS:
        placement = PLANNERS[name](problem).placement
        if placement not in known:
            known.add(placement)
            yield placement
    draw = random.Random(case.seed)
    for number in range(20 * case.placements):
        if len(known) - len(but) >= case.placements:
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
    stage_of = placement.stage_of_operator(len(problem.workload))
    edges = {(stage_of[a], stage_of[b]) for a, b in problem.workload.edges}
    return any((k, k + 1) not in edges for k in range(len(placement.stages) - 1))


def summary(rows: Sequence[Compared]) -> DataFrame:
    """Return errors and correlations of every model, and of all."""
    found = DataFrame(
        [p.model_dump() | {"model": row.case.model} for row in rows for p in row.predictions]
    )
    found["error"] = found.simulated / found.measured - 1
    found["alone_error"] = found.alone / found.measured - 1
    found["rule_error"] = found.by_rule / found.measured - 1
    found["within"] = found.error.abs() <= 2 * found.spread
    groups = dict(iter(found.groupby("model", sort=False)))
    if len(groups) > 1:
        groups["all"] = found
    return DataFrame(
        {
            "model": name,
            "placements": str(len(group)),
            "replicated": str(sum(set(c.split("-")) != {"1"} for c in group.configuration)),
            "branching": str(group.branching.sum()),
            "median error": f"{group.error.abs().median():.1%}",
            "operators alone": f"{group.alone_error.abs().median():.1%}",
            "within two error bars": f"{group.within.mean():.0%}",
            "worst": f"{max(group.error, key=abs):+.1%}",
            "correlation": f"{group.measured.corr(group.simulated):.3f}",
            "rank correlation": f"{group.measured.corr(group.simulated, 'spearman'):.3f}",
            "median error of the rule": f"{group.rule_error.abs().median():.1%}",
        }
        for name, group in groups.items()
    )


def draw_scatter(rows: Sequence[Compared], path: Path) -> None:
    """Draw simulated over measured seconds, with a colour for each model."""
    figure = Figure(figsize=(6, 5.2), layout="constrained")
    axes = figure.subplots()
    for number, row in enumerate(rows):
        group = row.predictions
        for branching, marker in ((False, "o"), (True, "^")):
            points = [p for p in group if p.branching == branching]
            axes.scatter(
                [1e3 * p.measured for p in points],
                [1e3 * p.simulated for p in points],
                color=f"C{number}",
                marker=marker,
                s=22,
                label=None if branching else row.case.model,
            )
    both = [
        1e3 * value for row in rows for p in row.predictions for value in (p.measured, p.simulated)
    ]
    ends = [0.9 * min(both), 1.1 * max(both)]
    axes.plot(ends, ends, color="grey", linewidth=1)
    axes.fill_between(
        ends, [0.95 * e for e in ends], [1.05 * e for e in ends], color="grey", alpha=0.2
    )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="measured milliseconds per minibatch",
        ylabel="simulated (band: ±5%; triangles: branching)",
    )
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)


STUDY = PredictionStudy()
