"""What each way of training is worth where links are slow, live on emulated accelerators.

Worlds are clusters known by name, whose ratio of links to computing four accelerators emulate
that share the cores of this machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pandas import DataFrame

from benchmarks.study import Needs, Row, Study, this_machine
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.costs.ways_of_training import WaysOfTraining
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.plan import Plan
from drlpp.planners.map import ways_of_training
from drlpp.planners.plan import plan
from drlpp.planners.problem import PlanningProblem
from drlpp.planners.search import Vary
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import PLAIN, measure
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import SYNC
from drlpp.specs.cluster import Cluster, Host, Link, read_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

MODELS: dict[str, tuple[str, dict[str, bool | int | float | str]]] = {
    "decoder": ("gpt2", {"batch_size": 8, "vocabulary": 256, "hidden": 192, "dropout": 0.0}),
    "alexnet": ("alexnet", {}),
}
WORLDS = ("a100-100gbit", "a100-25gbit", "a100-10gbit", "rtx4090-1gbit")
_SPEEDS = (0.4, 0.4, 0.4, 0.4)
_TOKENS = 8192
"""Of a minibatch on each of the real accelerators."""

_REAL_WEIGHTS = 1e9
"""Of the model there; only latencies depend on it."""

_PARALLEL: tuple[ParallelWay, ...] = ("ddp", "zero-2", "fsdp", "local-sgd")
PLANS = _PLAN, PLAN_TO_LOSS = "plan", "plan to a loss"
_LONGEST_SECONDS = 4.0
"""What is predicted to take longer is measured in fewer minibatches, and if one does, once."""

_HOPELESS = 50
"""What is predicted to take so many times as long as plain PyTorch is not measured."""


_ADAMW = OptimizerSpec.parse("adamw", lr=1e-3)


class Case(Record):
    """A model in a world.

    Attributes:
        model: its name in the table.
        world: a cluster that is known by name.
        minibatches: of a measurement, at most.
        rounds: of measurements in turns.
    """

    model: str
    world: str
    minibatches: int = 8
    rounds: int = 2


class Way(Record):
    """A way of training, with its predicted and measured seconds of a minibatch.

    Attributes:
        name: of the way.
        configuration: replicas of stages, or processes.
        predicted: seconds, by formula or simulated.
        seconds: of each measurement; none if it failed.
        failure: why it did.
    """

    name: str
    configuration: str
    predicted: float
    seconds: tuple[float, ...] = ()
    failure: str = ""


class Raced(Row):
    """What came out in a world.

    Attributes:
        weights_ratio: R_w, seconds of sending all weights for each of a minibatch on one
            accelerator.
        ways: of training; plans are the last.
        took_seconds: of the case.
    """

    case: Case
    weights_ratio: float
    ways: tuple[Way, ...]
    took_seconds: float
    machine: str


def real_ratio(world: Cluster) -> float:
    """Return R_w = F / (3·T·B) of a cluster.

    Training computes 6 FLOPs for each weight and token, and a weight has two bytes: 2·W / B over
    6·W·T / F, with F FLOP/s, T tokens and B bytes per second between hosts, whatever W is.
    """
    assert world.between_hosts is not None
    flops = world.hosts[0].flops_per_second or 0.0
    return flops / (3 * _TOKENS * world.between_hosts.bandwidth_bytes_per_second)


def scaled_links(world: Cluster, weight_bytes: float, seconds: float) -> Cluster:
    """Return hosts of one accelerator each, whose links are to a model what the world's are.

    The bandwidth is bytes of the weights / (R_w · seconds of a minibatch of plain PyTorch on one
    accelerator), with R_w of :func:`real_ratio`. A latency is the same share of a minibatch as the
    world's is of one of 6·W·T / F seconds, W being a billion weights.
    """
    assert world.between_hosts is not None
    flops = world.hosts[0].flops_per_second or 0.0
    scale = seconds / (6 * _REAL_WEIGHTS * _TOKENS / flops)
    link = Link(
        bandwidth_bytes_per_second=weight_bytes / (real_ratio(world) * seconds),
        latency_seconds=world.between_hosts.latency_seconds * scale,
    )
    host = Host(name="host", count=world.accelerators, accelerators=1)
    return Cluster(hosts=(host,), within_host=link, between_hosts=link)


@dataclass(frozen=True)
class World:
    """A model on emulated accelerators with the links of a world.

    Attributes:
        captured: the model.
        profile: of it, on these accelerators.
        cluster: these, with the world's links to scale.
        optimizer, method: of the session.
    """

    captured: CapturedModel
    profile: Profile
    cluster: Cluster
    optimizer: OptimizerSpec
    method: Method

    @classmethod
    def of(
        cls,
        model: str,
        world: str,
        repeats: int = 10,
        optimizer: OptimizerSpec = _ADAMW,
        method: Method = DEFAULT_METHOD,
    ) -> World:
        """Profile a model, and scale the links.

        Raises:
            RunFailure: the profile cannot be taken.
        """
        name, options = MODELS[model]
        captured = capture(ModelReference.named(name, "small", **options))
        with _session(captured, None, optimizer, method) as session:
            profile, here = session.profile(repeats)
        seconds = _predictions(profile, here, optimizer).plain.seconds_per_minibatch
        links = scaled_links(read_cluster(world), captured.graph.parameter_bytes, seconds)
        return cls(captured, profile, links.with_speeds(_SPEEDS), optimizer, method)

    @property
    def predicted(self) -> WaysOfTraining:
        """What torch's own ways of training are predicted to take."""
        return _predictions(self.profile, self.cluster, self.optimizer)

    def find(self, **options: Any) -> Plan:
        """Plan for it."""
        return plan(
            self.captured,
            profile=self.profile,
            cluster=self.cluster,
            optimizer=self.optimizer,
            **{"method": self.method, **options},
        )

    @cached_property
    def plans(self) -> dict[str, Plan]:
        """The plan with the fastest minibatch, and the default one, to a loss."""
        return {_PLAN: self.find(objective="seconds"), PLAN_TO_LOSS: self.find()}

    def session(self) -> ClusterSession:
        """Start the emulated accelerators."""
        return _session(self.captured, self.cluster, self.optimizer, self.method)


def _session(
    captured: CapturedModel, links: Cluster | None, optimizer: OptimizerSpec, method: Method
) -> ClusterSession:
    return ClusterSession(
        captured,
        len(_SPEEDS),
        speeds=_SPEEDS,
        links=links,
        optimizer=optimizer,
        method=method,
        note=lambda _: None,
    )


class WorldsStudy(Study[Case, Raced]):
    """Plain PyTorch, torch's data parallelism, flushed 1F1B and plans, in turns."""

    name = "worlds"
    question = "What is each way of training worth where links are slow?"
    row = Raced
    needs = Needs(quiet=True, hours=0.3)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return every model in every world."""
        if short:
            return [Case(model="alexnet", world="a100-100gbit", minibatches=2, rounds=1)]
        rounds = seeds or 2
        return [Case(model=m, world=world, rounds=rounds) for world in WORLDS for m in MODELS]

    def run(self, case: Case) -> Raced:
        """Profile, scale the links, plan, and measure in turns.

        Raises:
            RunFailure: the profile cannot be taken.
        """
        begin = time.perf_counter()
        world = World.of(case.model, case.world, repeats=5 if case.rounds == 1 else 10)
        predicted = world.predicted
        flushed = choose_method(SYNC.name, {"schedule": FLUSHED_1F1B.name, "microbatches": 4})
        in_microbatches = world.find(method=flushed, vary=frozenset({Vary.MICROBATCHES}))
        planned = {FLUSHED_1F1B.name: in_microbatches, **world.plans}
        every = range(len(_SPEEDS))
        usual = Method()
        contenders = [
            (
                Contender(found_by=PLAIN, method=usual, threads=1),
                predicted.plain.seconds_per_minibatch,
            ),
            *(
                (
                    Contender(
                        found_by=one.name,
                        method=usual,
                        way=way,
                        processes=len(every),
                        every=one.every,
                    ),
                    one.seconds_per_minibatch,
                )
                for way in _PARALLEL
                if (one := predicted.of(way, every))
            ),
            *(
                (Contender.of(one.candidate, title), one.seconds_per_minibatch)
                for title, one in planned.items()
            ),
        ]
        with world.session() as session:
            ways = _measured(case, session, contenders)
        return Raced(
            case=case,
            weights_ratio=predicted.weights_ratio,
            ways=ways,
            took_seconds=time.perf_counter() - begin,
            machine=this_machine(),
        )

    def table(self, rows: Sequence[Raced]) -> Mapping[str, DataFrame]:
        """Return milliseconds of a minibatch, and errors of predictions."""
        return {
            "A minibatch, measured (predicted), ms": DataFrame(map(_line, rows)),
        }


def _predictions(profile: Profile, cluster: Cluster, optimizer: OptimizerSpec) -> WaysOfTraining:
    problem = PlanningProblem.profiled(profile, cluster, Method(), optimizer)
    return ways_of_training(problem, profile.batch_size)


def _measured(
    case: Case, session: ClusterSession, contenders: Sequence[tuple[Contender, float]]
) -> tuple[Way, ...]:
    ways = [
        Way(
            name=one.found_by,
            configuration=one.beside(Method()),
            predicted=cost,
        )
        for one, cost in contenders
    ]
    for number in range(case.rounds):
        for place, (one, _) in enumerate(contenders):
            way = ways[place]
            possible = int(_LONGEST_SECONDS / way.predicted)
            hopeless = way.predicted > _HOPELESS * ways[0].predicted
            if way.failure or hopeless or (number and not possible):
                continue
            outcome = measure(session, one, min(case.minibatches, max(possible, 1)))
            if isinstance(outcome, FailedMeasurement):
                ways[place] = way.model_copy(update={"failure": outcome.reason, "seconds": ()})
            else:
                seconds = (*way.seconds, outcome.seconds_per_minibatch)
                ways[place] = way.model_copy(update={"seconds": seconds})
    return tuple(ways)


def _line(row: Raced) -> dict[str, str]:
    measured = {way.name: statistics.median(way.seconds) for way in row.ways if way.seconds}
    line = {"world": row.case.world, "model": row.case.model, "R_w": f"{row.weights_ratio:.2f}"}
    for way in row.ways:
        took = f"{1e3 * measured[way.name]:.0f}" if way.name in measured else "–"
        line[way.name] = f"{took} ({1e3 * way.predicted:.0f})"
    rivals = [way for way in row.ways if way.seconds and way.name not in PLANS]
    errors = [abs(way.predicted / measured[way.name] - 1) for way in rivals]
    return line | {"rivals' error": f"{statistics.median(errors):.0%}" if errors else "–"}


STUDY = WorldsStudy()
