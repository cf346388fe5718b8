"""How far are plans, and what measurements find, from the best known?"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence

import numpy
from pandas import DataFrame

from benchmarks.search.problems import Case, Instance, measured_cases, planned_cases
from benchmarks.search.tables import (
    Found,
    Step,
    answer,
    calibration,
    expectations,
    gaps,
    plans_table,
)
from benchmarks.study import Needs, Study
from drlpp.agents import GuidedHyperparameters
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.planners import Limits, best_plan
from drlpp.planners.calibration.recalibration import Recalibration
from drlpp.planners.search import search
from drlpp.simulator import SimulatedCluster

_MINIBATCHES = 30
_RUNS = 3
_GIVE_UP = GuidedHyperparameters().give_up
"""As the guided agent measures by default."""


class SearchStudy(Study[Case, Found]):
    """Simulated: gaps to the best known after 0, 4, 8 and 16 measurements."""

    name = "search"
    question = "How far are plans, and what measurements find, from the best known?"
    row = Found
    needs = Needs(hours=4)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return problems to plan for, and as many rounds of problems to measure as ``seeds``."""
        if short:
            few = Case(
                graph="layered (made up)",
                accelerators=3,
                bandwidth=1.25e8,
                measurements=0,
                starts=1,
                evaluations=50,
            )
            measured = {"graph": "towers-40", "bandwidth": 5e8, "wrong": True, "measurements": 2}
            return [few, few.model_copy(update=measured)]
        return [*planned_cases(), *measured_cases(seeds or 1)]

    def run(self, case: Case) -> Found:
        """Plan, measure as often as the case says, and search for the best known."""
        begin = time.perf_counter()
        instance = Instance(case)
        found = _planned(instance) if case.measurements == 0 else _measured(instance)
        return found.model_copy(update={"took_seconds": time.perf_counter() - begin})

    def table(self, rows: Sequence[Found]) -> Mapping[str, DataFrame]:
        """Return gaps of plans, gaps after measurements, and whether what is said of them holds."""
        measured = [row for row in rows if row.case.measurements]
        return {
            "Plans: gap to the best known, by problem": plans_table(rows),
            "Gap to the best known after some measurements, %": gaps(measured),
            "How sure the search is, and how often that holds": calibration(measured),
            "What it expects to save, and what is left to save": expectations(measured),
        }

    def said(self, rows: Sequence[Found]) -> str:
        """Return the answer for plans, and for measurements."""
        return answer(rows)


def _planned(instance: Instance) -> Found:
    found = best_plan(instance.true, instance.space)
    proposals, planned = found.others, found.seconds_per_minibatch
    proposed = proposals[0].seconds_per_minibatch
    return Found(
        case=instance.case,
        best_known=min(planned, proposed, _best_known(instance)),
        planned=planned,
        best_plan=proposed,
        data_parallel=min(
            proposal.seconds_per_minibatch
            for proposal in proposals
            if len(proposal.placement.stages) == 1
        ),
        planned_by=proposals[0].found_by,
    )


def _measured(instance: Instance) -> Found:
    case, judge = instance.case, instance.judge
    cluster = SimulatedCluster(instance.profile, instance.true.cluster)
    noise = numpy.random.default_rng([18, case.seed])
    found = Recalibration(instance.declared, instance.space)
    steps: list[Step] = []
    seconds_of: dict[Candidate, float] = {}
    spent = saved = 0.0
    while len(steps) < case.measurements:
        if not (proposals := found.propose(1)):
            break
        outcome = cluster.measure(proposals[0], _MINIBATCHES)
        if isinstance(outcome, Measurement):
            took = outcome.minibatches * outcome.seconds_per_minibatch
            spent += took
            fastest = min(seconds_of.values(), default=math.inf)
            if outcome.seconds_per_minibatch > _GIVE_UP * fastest:
                saved += took * (1 - 1 / _RUNS)
            seconds_of[proposals[0]] = outcome.seconds_per_minibatch
            outcome = _noisy(outcome, case.noise, noise)
        found.tell(proposals[0], outcome)
        best, belief = found.best(1), found.belief
        now = seconds_of[best[0][0]] if best else math.inf
        steps.append(Step(seconds=now, gain=belief.gain, sureness=belief.confidence))
    planned = judge.exactly(first) if (first := next(iter(seconds_of), None)) else math.inf
    proposed = min(map(judge.exactly, instance.declared_plans))
    return Found(
        case=case,
        best_known=min([*seconds_of.values(), proposed, _best_known(instance)]),
        planned=planned,
        best_plan=proposed,
        steps=tuple(steps),
        settled=found.settled,
        sureness=found.belief.confidence,
        cluster_seconds=spent,
        saved_seconds=saved,
    )


def _best_known(instance: Instance) -> float:
    """Search with the true costs, from their plans and then from even splits.

    Nothing that was measured is told to it.
    """
    found = [
        search(
            instance.judge.anew(),
            instance.true_plans if number == 0 else [],
            Limits(judged=instance.case.evaluations),
            seed=1000 + number,
        )[0].seconds_per_minibatch
        for number in range(instance.case.starts)
    ]
    return min(found, default=math.inf)


def _noisy(outcome: Measurement, noise: float, draw: numpy.random.Generator) -> Measurement:
    return outcome.model_copy(
        update={
            "seconds_per_minibatch": outcome.seconds_per_minibatch * draw.lognormal(0.0, noise),
            "workers": tuple(
                usage.model_copy(
                    update={"busy_seconds": usage.busy_seconds * draw.lognormal(0.0, noise)}
                )
                for usage in outcome.workers
            ),
        }
    )


STUDY = SearchStudy()
