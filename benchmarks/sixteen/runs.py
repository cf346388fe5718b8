"""One instance, one seed: what is found after every measurement, and what is said of it."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy
import torch

from benchmarks import PROFILES
from benchmarks.learning.branching_graphs import NAMES, graph_of
from benchmarks.learning.policy_proposals import PROPOSED, SAMPLES, network_of, sampled
from drlpp.agents import GuidedHyperparameters
from drlpp.agents.transfer.transfer_policy import TransferNetwork
from drlpp.cells import read_results_of
from drlpp.costs.files.profile_files import read_profile
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement
from drlpp.planners import Limits, PlanningProblem, Space, data_parallel
from drlpp.planners.best_searched import planned_in, starts_of
from drlpp.planners.candidates import Judge, search
from drlpp.planners.model_based.recalibration import Recalibration
from drlpp.planners.model_based.surrogate import Surrogate
from drlpp.schedule.analysis.staleness import usual_staleness
from drlpp.schedule.method import Method
from drlpp.simulator import SimulatedCluster
from drlpp.specs.cluster import Cluster, Link, local_cluster

_OPERATOR_ERROR = 0.25
_KIND_ERROR = 0.2
_LINK_ERROR = 0.5
"""Standard deviations of logarithms, where what is declared is wrong."""

_MINIBATCHES = 30

_RUNS = 3
_GIVE_UP = GuidedHyperparameters().give_up
"""As the guided agent measures by default."""


ZOO = tuple(sorted(path.stem for path in PROFILES.glob("*.json")))
"""Models of the zoo that are profiled here."""

GRAPHS = (*NAMES, *ZOO)


class Cell(Record):
    """What a run is of.

    Attributes:
        graph: one of :data:`GRAPHS`.
        accelerators: how many.
        bandwidth: of all links, in bytes per second.
        wrong: whether operators and links are declared wrongly; speeds, if they are unequal, then
            are not declared.
        unequal: whether half of the accelerators are slower.
        noise: standard deviation of the logarithm of what is measured.
        seed: of errors, noise and search.
    """

    graph: str
    accelerators: int
    bandwidth: float
    wrong: bool
    unequal: bool
    noise: float
    seed: int


class Step(Record):
    """After a measurement: the true seconds of the fastest by measurement, and what is said of it.

    ``gain`` is what the best of each draw is expected to save, ``sureness`` how probable it is that
    nothing is more than 1% faster.
    """

    seconds: float
    gain: float
    sureness: float


class Run(Record):
    """A cell and what came out.

    Attributes:
        policy: the file of the policy that proposed, empty without one.
        best_known: true seconds per minibatch of the best that is known.
        planned: of what the search with the declared costs would have measured first.
        best_plan: of the fastest of the planners' placements, at NOAM and at the depth that suits
            each by the declared costs, and of data parallelism.
        steps: after every measurement; fewer than allowed if it settled.
        settled: whether it did.
        sureness: what is said at the end, after long searches.
        took_seconds: the run, on the clock.
        cluster_seconds: what the measurements would take, warm-up left out.
        saved_seconds: what of it is saved where a measurement is three runs, and what is far slower
            than the fastest so far is not run again (``give_up`` of the guided agent).
    """

    cell: Cell
    policy: str = ""
    best_known: float
    planned: float
    best_plan: float
    steps: tuple[Step, ...]
    settled: bool
    sureness: float
    took_seconds: float
    cluster_seconds: float
    saved_seconds: float

    def gap(self, measurements: int) -> float:
        """Return how far above the best known it is after so many measurements."""
        steps = self.steps[:measurements]
        return (steps[-1].seconds if steps else self.planned) / self.best_known - 1


read_runs = partial(read_results_of, "benchmarks.sixteen", Run)


@dataclass(frozen=True)
class Instance:
    """The costs of a cell, as they are and as they are declared."""

    cell: Cell

    @cached_property
    def true(self) -> PlanningProblem:
        """What is measured."""
        cell = self.cell
        speeds = [1.0 if a < cell.accelerators / 2 else 0.6 for a in range(cell.accelerators)]
        cluster = self._cluster(1.0, speeds if cell.unequal else None)
        return PlanningProblem(Workload.of(self.profile, Method()), cluster, seed=cell.seed)

    @cached_property
    def declared(self) -> PlanningProblem:
        """What the search is told."""
        cell = self.cell
        if not cell.wrong:
            return self.true
        draw = numpy.random.default_rng([17, cell.seed])
        cluster = self._cluster(float(draw.lognormal(0.0, _LINK_ERROR)), None)
        profile = _with_errors(self.profile, draw)
        return PlanningProblem(Workload.of(profile, Method()), cluster, seed=cell.seed)

    @cached_property
    def profile(self) -> Profile:
        """The costs as they are."""
        name = self.cell.graph
        return read_profile(PROFILES / f"{name}.json") if name in ZOO else graph_of(name)

    @cached_property
    def space(self) -> Space:
        """The in-flight depth varies, as far as staleness does not grow beyond the usual."""
        method = Method()
        return Space(method, None, usual_staleness(method, self.cell.accelerators))

    @cached_property
    def declared_plans(self) -> list[Candidate]:
        """What planners propose by what is declared, and data parallelism."""
        return _plans(self.declared, self.space)

    @cached_property
    def true_plans(self) -> list[Candidate]:
        """The same by the costs as they are."""
        return _plans(self.true, self.space) if self.cell.wrong else self.declared_plans

    @cached_property
    def judge(self) -> Judge:
        """Judges by the costs as they are."""
        return Judge(self.true, self.space)

    def _cluster(self, factor: float, speeds: list[float] | None) -> Cluster:
        link = Link(bandwidth_bytes_per_second=factor * self.cell.bandwidth, latency_seconds=5e-5)
        return local_cluster(self.cell.accelerators, link, speeds)


def _with_errors(profile: Profile, draw: numpy.random.Generator) -> Profile:
    kinds = {operator.type for operator in profile.graph.operators}
    of_kind = {kind: draw.lognormal(0.0, _KIND_ERROR) for kind in sorted(kinds)}
    factors = [
        float(of_kind[operator.type] * draw.lognormal(0.0, _OPERATOR_ERROR))
        for operator in profile.graph.operators
    ]
    operators = tuple(
        costs.model_copy(
            update={
                "forward_seconds": costs.forward_seconds * factor,
                "backward_seconds": costs.backward_seconds * factor,
            }
        )
        for costs, factor in zip(profile.operators, factors, strict=True)
    )
    return profile.model_copy(update={"operators": operators})


def run(cell: Cell, budget: int, starts: int, evaluations: int, policy: Path | None = None) -> Run:
    """Run a cell.

    Args:
        cell: what to run.
        budget: of measurements.
        policy: weights of one that proposes before every measurement, by the costs as corrected.
        starts: random ones of the search for the best known, one after the other.
        evaluations: of that search from each.
    """
    begin = time.perf_counter()
    instance = Instance(cell)
    judge, cluster = instance.judge, SimulatedCluster(instance.profile, instance.true.cluster)
    noise = numpy.random.default_rng([18, cell.seed])
    found = Recalibration(instance.declared, instance.space)
    network = None if policy is None else network_of(policy)
    torch.manual_seed(cell.seed)
    steps: list[Step] = []
    seconds_of: dict[Candidate, float] = {}
    spent = saved = 0.0
    while len(steps) < budget:
        imagined = [] if network is None else _imagined(network, found.surrogate)
        if not (proposals := found.propose(1, imagined)):
            break
        outcome = cluster.measure(proposals[0], _MINIBATCHES)
        if isinstance(outcome, Measurement):
            took = outcome.minibatches * outcome.seconds_per_minibatch
            spent += took
            if outcome.seconds_per_minibatch > _GIVE_UP * min(
                seconds_of.values(), default=math.inf
            ):
                saved += took * (1 - 1 / _RUNS)
            seconds_of[proposals[0]] = outcome.seconds_per_minibatch
            outcome = _noisy(outcome, cell.noise, noise)
        found.tell(proposals[0], outcome)
        best = found.best(1)
        belief = found.belief
        now = seconds_of[best[0][0]] if best else math.inf
        steps.append(Step(seconds=now, gain=belief.gain, sureness=belief.sureness))
    planned = judge.exactly(first) if (first := next(iter(seconds_of), None)) else math.inf
    best_plan = min(map(judge.exactly, instance.declared_plans))
    best_known = min([*seconds_of.values(), best_plan, _best_known(instance, starts, evaluations)])
    return Run(
        cell=cell,
        policy="" if policy is None else policy.name,
        best_known=best_known,
        planned=planned,
        best_plan=best_plan,
        steps=tuple(steps),
        settled=found.settled,
        sureness=found.last_word().sureness,
        took_seconds=time.perf_counter() - begin,
        cluster_seconds=spent,
        saved_seconds=saved,
    )


def _imagined(network: TransferNetwork, surrogate: Surrogate) -> list[Candidate]:
    """Return the best of what the policy draws, as many as the guided agent takes."""
    drawn = sampled(network, surrogate.problem, SAMPLES)
    return sorted(drawn, key=surrogate)[:PROPOSED]


def _plans(problem: PlanningProblem, space: Space) -> list[Candidate]:
    choice = planned_in(space, problem)
    everywhere = Candidate(data_parallel(problem).placement, space.method)
    return [everywhere, *starts_of(space, choice.proposals)]


def _best_known(instance: Instance, starts: int, evaluations: int) -> float:
    """Search with the true costs, from their plans and then from random starts.

    Nothing that was measured is told to it.
    """
    limits = Limits(judged=evaluations)
    found = [
        search(
            instance.judge.anew(),
            instance.true_plans if number == 0 else [],
            limits,
            seed=1000 + number,
        ).seconds
        for number in range(starts)
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
