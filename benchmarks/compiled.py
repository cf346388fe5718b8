"""What compiled stages gain, beside plain PyTorch as it is and compiled, and how long they take.

All ways of training run in turns, on one core for each worker. ``docs/results.md`` has the answers.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryDirectory

from pandas import DataFrame

from benchmarks.study import Needs, Row, Study, this_machine
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.workload import Workload
from drlpp.errors import RunFailure
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import PLAIN, measure
from drlpp.runtime import ClusterSession
from drlpp.runtime.hosts.fork_server import kill_server
from drlpp.schedule.method import Method

_MODELS: dict[str, tuple[str, dict[str, bool | int | float | str]]] = {
    "decoder": ("gpt2", {"dropout": 0.0}),
    "wide decoder": ("gpt2", {"dropout": 0.0, "hidden": 256}),
    "decoder with dropout": ("gpt2", {}),
    "alexnet": ("alexnet", {}),
    "vgg16": ("vgg16", {}),
}
_SYNC = Method(schedule="gpipe", policy="sync")
_PIPELINE = Method()
STAGE, STAGES = "one stage", "a stage for each worker, PipeOptim"


class Case(Record):
    """A model, in turns on one worker and on several.

    Attributes:
        model: its name in the table.
        workers: that train the pipeline. More than there are cores share them.
        minibatches: of a measurement.
        repetitions: measurements of every way.
    """

    model: str
    workers: int = 2
    minibatches: int = 30
    repetitions: int = 5


class Way(Record):
    """A way of training, and the seconds of a minibatch in each measurement."""

    name: str
    compiled: bool
    seconds: tuple[float, ...]


class Timed(Row):
    """What came out for a model.

    Attributes:
        ways: of training it.
        new_seconds: to deploy compiled stages that torch does not know.
        known_seconds: that other workers have compiled.
        kept_seconds: that these workers have compiled.
        as_it_is_seconds: to deploy the same without compiling.
        uncompiled: stages that cannot be compiled, and why.
    """

    case: Case
    ways: tuple[Way, ...]
    new_seconds: float
    known_seconds: float
    kept_seconds: float
    as_it_is_seconds: float
    uncompiled: dict[int, str]
    machine: str


class CompiledStudy(Study[Case, Timed]):
    """Plain PyTorch, one stage and several, each as it is and compiled."""

    name = "compiled"
    question = "What do compiled stages gain, beside compiled plain PyTorch?"
    row = Timed
    needs = Needs(quiet=True, hours=0.5)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return a case for each model."""
        if short:
            return [Case(model="decoder", minibatches=3, repetitions=1)]
        shapes = [(model, 2) for model in _MODELS] + [("decoder", 4), ("wide decoder", 4)]
        return [Case(model=name, workers=k, repetitions=seeds or 5) for name, k in shapes]

    def run(self, case: Case) -> Timed:
        """Time deploying, then training in turns.

        Raises:
            RunFailure: something cannot be run.
        """
        name, options = _MODELS[case.model]
        captured = capture(ModelReference.named(name, "small", **options))
        before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        with TemporaryDirectory() as cache:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
            # Workers have the environment of the server that they are forked from.
            kill_server()
            try:
                return self._run(case, captured)
            finally:
                kill_server()
                os.environ.pop("TORCHINDUCTOR_CACHE_DIR")
                if before is not None:
                    os.environ["TORCHINDUCTOR_CACHE_DIR"] = before

    def _run(self, case: Case, captured: CapturedModel) -> Timed:
        compiled = _PIPELINE.model_copy(update={"compiled": True})
        with ClusterSession(captured, case.workers, note=lambda _: None) as session:
            profile, cluster = session.profile()
            problem = PlanningProblem(Workload.of(profile), cluster, replicate=False)
            even = PLANNERS["gpipe"](problem).placement
            session.deploy(even, _PIPELINE)
            new = session.deploy(even, compiled)
        with ClusterSession(captured, case.workers, note=lambda _: None) as session:
            as_it_is = [session.deploy(even, _PIPELINE) for _ in range(2)][1].seconds
            known = session.deploy(even, compiled).seconds
            session.deploy(even, _PIPELINE)
            kept = session.deploy(even, compiled).seconds
            ways = _timed(case, session, _ways(captured, even))
        return Timed(
            case=case,
            ways=ways,
            new_seconds=new.seconds,
            known_seconds=known,
            kept_seconds=kept,
            as_it_is_seconds=as_it_is,
            uncompiled=dict(new.uncompiled),
            machine=this_machine(),
        )

    def table(self, rows: Sequence[Timed]) -> Mapping[str, DataFrame]:
        """Return medians and ratios of a minibatch, and seconds of deploying."""
        return {
            "A minibatch": DataFrame(line for row in rows for line in _lines(row)),
            "Seconds of deploying a stage for each worker": DataFrame(
                {
                    "model": row.case.model,
                    "workers": str(row.case.workers),
                    "as they are": f"{row.as_it_is_seconds:.2f}",
                    "compiled, new": f"{row.new_seconds:.1f}",
                    "known from other workers": f"{row.known_seconds:.2f}",
                    "known from before": f"{row.kept_seconds:.2f}",
                    "not compiled": "; ".join(row.uncompiled.values()) or "–",
                }
                for row in rows
            ),
        }


def _ways(captured: CapturedModel, even: Placement) -> dict[tuple[str, bool], Contender]:
    whole = Placement.from_assignment([0] * len(captured.graph), (0,))
    placed = {PLAIN: (None, _SYNC), STAGE: (whole, _SYNC), STAGES: (even, _PIPELINE)}
    return {
        (name, compiled): Contender(
            found_by=name,
            placement=placement,
            method=method.model_copy(update={"compiled": compiled}),
            threads=1,
        )
        for name, (placement, method) in placed.items()
        for compiled in (False, True)
    }


def _timed(
    case: Case, session: ClusterSession, ways: Mapping[tuple[str, bool], Contender]
) -> tuple[Way, ...]:
    found: dict[tuple[str, bool], list[float]] = {way: [] for way in ways}
    for repetition in range(case.repetitions):
        # There and back: what drifts hits all alike.
        for way in ways if repetition % 2 == 0 else reversed(list(ways)):
            outcome = measure(session, ways[way], case.minibatches)
            if isinstance(outcome, FailedMeasurement):
                raise RunFailure(f"{case.model}, {way}: {outcome.reason}")
            found[way].append(outcome.seconds_per_minibatch)
    return tuple(
        Way(name=name, compiled=compiled, seconds=tuple(seconds))
        for (name, compiled), seconds in found.items()
    )


def _lines(row: Timed) -> Iterator[dict[str, str]]:
    seconds = {(way.name, way.compiled): way.seconds for way in row.ways}
    for name in (PLAIN, STAGE, STAGES):
        as_it_is, compiled = seconds[name, False], seconds[name, True]
        over = [_ratio(seconds[name, kind], seconds[PLAIN, kind]) for kind in (False, True)]
        yield {
            "model": row.case.model,
            "workers": str(row.case.workers if name == STAGES else 1),
            "trained by": name,
            "as it is": f"{1e3 * statistics.median(as_it_is):.1f} ms",
            "compiled": f"{1e3 * statistics.median(compiled):.1f} ms",
            "compiling gains": f"{_ratio(as_it_is, compiled):.2f}×",
            "over plain": f"{over[0]:.2f}×",
            "over plain, both compiled": f"{over[1]:.2f}×",
        }


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median ratio of samples of one repetition."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


STUDY = CompiledStudy()
