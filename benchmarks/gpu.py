"""Does everything work on a GPU, and what does it take there?

``make gpu`` runs the tests for GPUs and this. Workers share the device, and a section that fails is
noted while the others go on. Without a GPU, or with ``--short``, models are the small ones of the
zoo, on processors. What workers that share a GPU lose to plain PyTorch is what the figures are
about; several GPUs, and NCCL between them, are not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

import torch
from pandas import DataFrame
from pydantic import Field

from benchmarks.study import Needs, Row, Study, this_machine
from drlpp.capturing.capture import capture
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.io.documents import Record
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem
from drlpp.racing.contenders import Contender
from drlpp.racing.plain import measure_plain
from drlpp.racing.rivals import PLAIN
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster

_PUBLISHED: dict[str, dict[str, Option]] = {
    "gpt2": {"batch_size": 8, "dropout": 0.0},
    "vgg16": {"batch_size": 64},
    "gnmt8": {"dropout": 0.0},
}
"""What a GPU measures: options on top of the published sizes."""
_SECONDS = 360.0
"""Of a model, after which no section is begun."""


class Case(Record):
    """A model on workers that share a device.

    Attributes:
        model: its name in the zoo.
        size: ``published`` or ``small``.
        device: what they compute on.
        workers: how many.
        minibatches: of a measurement.
    """

    model: str
    size: str
    device: str
    workers: int = 4
    minibatches: int = 20


class Run(Record):
    """A way to train a model, measured once.

    Attributes:
        name: what the table calls it.
        placement: replicas of every stage; empty of plain PyTorch.
        precision: of the computation.
        seconds: of a minibatch; None if it failed.
        busiest_seconds: what the worker that computes most computes for a minibatch.
        computing_seconds: what all workers together compute for one.
        simulated_seconds: by the simulator, where one worker has the device to itself.
        memory_bytes: the most that a worker took.
        simulated_memory_bytes: the most that a stage needs, by the simulator.
        failure: why there are no figures.
    """

    name: str
    placement: str
    precision: str
    seconds: float | None = None
    busiest_seconds: float | None = None
    computing_seconds: float | None = None
    simulated_seconds: float | None = None
    memory_bytes: int | None = None
    simulated_memory_bytes: float | None = None
    failure: str = ""


class Found(Row):
    """What came out for a model.

    Attributes:
        machine: processor, versions, day.
        gpu: its name, memory and versions, or what workers compute on.
        operators, parameter_bytes: of its graph.
        capture_seconds, profile_seconds: what these took.
        operators_seconds: forward and backward of all operators, one after the other.
        runs: ways to train it.
        links: bytes of messages between stages, and the seconds of each.
        losses: mean loss of the first and of the last minibatches of a training on the same
            samples, so the second has to be smaller; empty if there was none.
        failures: sections that did not come to an end, and why.
    """

    case: Case
    machine: str
    gpu: str
    operators: int = 0
    parameter_bytes: int = 0
    capture_seconds: float = 0.0
    profile_seconds: float = 0.0
    operators_seconds: float = 0.0
    runs: tuple[Run, ...] = ()
    links: tuple[tuple[int, float], ...] = ()
    losses: tuple[float, ...] = ()
    failures: dict[str, str] = Field(default_factory=dict)


class GpuStudy(Study[Case, Found]):
    """Capture, plain PyTorch, profile, a training, and placements and methods beside them."""

    name = "gpu"
    question = "Does everything work on a GPU, and what does it take there?"
    row = Found
    needs = Needs(quiet=True, gpu=True, hours=0.3)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return three models; for a look, one of them on processors."""
        if short or not torch.cuda.is_available():
            few = ("gpt2",) if short else _PUBLISHED
            return [Case(model=model, size="small", device="cpu", minibatches=4) for model in few]
        return [Case(model=model, size="published", device="cuda") for model in _PUBLISHED]

    def run(self, case: Case) -> Found:
        """Do everything that there is time for."""
        bench = _Bench(case, time.monotonic() + _SECONDS)
        bench.section("capture", bench.capture)
        return Found(case=case, machine=this_machine(), gpu=_device(case.device), **bench.found)

    def table(self, rows: Sequence[Found]) -> Mapping[str, DataFrame]:
        """Return a table of ways to train for each model, one of messages, and one of the rest."""
        tables = {}
        for row in rows:
            title = f"{row.case.model}, {row.case.size} size, {row.case.workers} workers: {row.gpu}"
            tables[title] = DataFrame(_line(run, row.runs) for run in row.runs)
            if row.links:
                tables[f"{row.case.model}: messages between workers"] = DataFrame(
                    {
                        "kB": f"{size / 1e3:,.1f}",
                        "µs": f"{1e6 * seconds:,.0f}",
                        "GB/s": f"{size / seconds / 1e9:.2f}" if seconds else "–",
                    }
                    for size, seconds in row.links
                )
        tables["Models"] = DataFrame(map(_summary, rows))
        return tables

    def said(self, rows: Sequence[Found]) -> str:
        """Return what failed, and what prediction, recomputing and bfloat16 cost."""
        parts = []
        for row in rows:
            failed = dict(row.failures)
            failed |= {run.name: run.failure for run in row.runs if run.failure}
            parts += [f"{row.case.model}: {name} failed: {why}." for name, why in failed.items()]
            seconds = {run.name: run.seconds for run in row.runs}
            for of, over in (
                ("PipeOptim", "stashing"),
                ("stashing, recomputing", "stashing"),
                ("PipeOptim, recomputing, bfloat16", "PipeOptim, recomputing"),
                ("PipeOptim", "flushed 1F1B"),
            ):
                mine, other = seconds.get(of), seconds.get(over)
                if mine and other:
                    parts.append(
                        f"{row.case.model}: {of} takes {mine / other:.3f} times as long as {over}."
                    )
        return "\n".join(parts)


def ways(parts: int) -> dict[str, tuple[str, Method]]:
    """Return what is measured, by name: kind of placement and method."""
    one: dict[str, object] = {"schedule": "gpipe", "policy": "sync"}
    methods: dict[str, tuple[str, dict[str, object]]] = {
        "one stage": ("one", one),
        "one stage, bfloat16": ("one", {**one, "precision": "bfloat16"}),
        "one stage, compiled": ("one", {**one, "compiled": True}),
        "one stage, compiled, bfloat16": (
            "one",
            {**one, "compiled": True, "precision": "bfloat16"},
        ),
        "stashing": ("stages", {"policy": "stash"}),
        "PipeOptim": ("stages", {}),
        "PipeOptim, compiled": ("stages", {"compiled": True}),
        "PipeOptim, M = D": ("stages", {"microbatches": parts}),
        "PipeOptim, recomputing": ("stages", {"recompute": True}),
        "PipeOptim, recomputing, bfloat16": (
            "stages",
            {"precision": "bfloat16", "recompute": True},
        ),
        "stashing, recomputing": ("stages", {"policy": "stash", "recompute": True}),
        "flushed 1F1B": (
            "stages",
            {"schedule": "1f1b-flush", "policy": "sync", "microbatches": parts},
        ),
        "data parallel": ("replicas", {**one, "microbatches": parts}),
    }
    return {name: (kind, Method.model_validate(of)) for name, (kind, of) in methods.items()}


class _Bench:
    """Measures one model in sections; one that fails does not end the others."""

    def __init__(self, case: Case, deadline: float) -> None:
        self.case = case
        self.deadline = deadline
        self.found: dict[str, Any] = {"failures": {}, "runs": ()}

    def section(self, name: str, do: Callable[[], None]) -> None:
        """Do a part, and note what fails, whatever it is: the other parts count all the same."""
        if time.monotonic() >= self.deadline:
            self.found["failures"][name] = "no time was left"
            return
        try:
            do()
        except Exception as failure:
            self.found["failures"][name] = f"{type(failure).__name__}: {failure}"

    def capture(self) -> None:
        case, started = self.case, time.monotonic()
        options = _PUBLISHED[case.model] if case.size == "published" else {}
        captured = capture(ModelReference.named(case.model, case.size, **options))
        self.found |= {
            "capture_seconds": time.monotonic() - started,
            "operators": len(captured.graph),
            "parameter_bytes": captured.graph.parameter_bytes,
        }
        with ClusterSession(captured, case.workers, device=case.device) as session:
            self.section("plain PyTorch", partial(self._plain, session))
            self.section("profile", partial(self._profile, session))

    def _plain(self, session: ClusterSession) -> None:
        """Measure the user's module in an ordinary loop."""
        threads = None if self.case.device == "cuda" else 1
        for precision, compiled in product(("float32", "bfloat16"), (False, True)):
            method = Method.model_validate(
                {
                    "schedule": "gpipe",
                    "policy": "sync",
                    "precision": precision,
                    "compiled": compiled,
                }
            )
            one = Contender(found_by=PLAIN, method=method, threads=threads)
            outcome = measure_plain(session, one, self.case.minibatches)
            name = f"{PLAIN}, {precision}{', compiled' * compiled}"
            self.found["runs"] += (_run(name, "", method, outcome),)

    def _profile(self, session: ClusterSession) -> None:
        started = time.monotonic()
        profile, cluster = session.profile(repeats=10)
        self.found |= {
            "profile_seconds": time.monotonic() - started,
            "operators_seconds": sum(profile.seconds),
        }
        problem = PlanningProblem(Workload.of(profile), cluster, replicate=False)
        # Stages are balanced by the profile, and none has replicas.
        chosen = {
            "one": Placement.from_assignment([0] * len(profile.graph), [0]),
            "replicas": PLANNERS["data-parallel"](problem).placement,
            "stages": PLANNERS["gpipe"](problem).placement,
        }
        self.section("training", partial(self._train, session, chosen["stages"]))
        for name, (kind, method) in ways(self.case.workers).items():
            place = partial(self._place, session, profile, cluster, name, chosen[kind], method)
            self.section(name, place)

    def _place(
        self,
        session: ClusterSession,
        profile: Profile,
        cluster: Cluster,
        name: str,
        placement: Placement,
        method: Method,
    ) -> None:
        count = self.case.minibatches
        outcome = session.measure(placement, count, method)
        if isinstance(outcome, Measurement):
            links = dict(self.found.get("links", ()))
            links |= {link.bytes_: link.seconds for link in outcome.links}
            self.found["links"] = tuple(sorted(links.items()))
        simulated = {}
        # The profile's times are those of the session's precision.
        if method.precision == session.method.precision:
            workload, memory = (
                Workload.of(profile, method),
                MemoryModel.of(method, session.optimizer),
            )
            played = simulate(workload, cluster, placement, method, count, memory)
            simulated = {"simulated_memory_bytes": max(played.memory_bytes)}
            if len(placement.accelerators) == 1:
                simulated["simulated_seconds"] = played.seconds_per_minibatch
        run = _run(name, placement.configuration, method, outcome, **simulated)
        self.found["runs"] += (run,)

    def _train(self, session: ClusterSession, stages: Placement) -> None:
        """Train on the example minibatch with PipeOptim; its loss has to fall."""
        _, results = session.run(session.deploy(stages, Method()), 3 * self.case.minibatches)
        losses = {part: loss for result in results.values() for part, loss in result.losses.items()}
        values = [losses[part] for part in sorted(losses)]
        share = max(1, len(values) // 10)
        self.found["losses"] = fmean(values[:share]), fmean(values[-share:])


def _run(name: str, placement: str, method: Method, outcome: Outcome, **more: float) -> Run:
    found: dict[str, Any] = {"name": name, "placement": placement, **more}
    if isinstance(outcome, FailedMeasurement):
        return Run(**found, precision=method.precision, failure=outcome.reason)
    busy = [usage.busy_seconds / outcome.minibatches for usage in outcome.workers]
    return Run(
        **found,
        precision=method.precision,
        seconds=outcome.seconds_per_minibatch,
        busiest_seconds=max(busy, default=None),
        computing_seconds=sum(busy) if busy else None,
        memory_bytes=max((u.peak_memory_bytes for u in outcome.workers), default=None),
    )


def _device(kind: str) -> str:
    """Return the name of the GPU, its memory and the versions of CUDA and NCCL."""
    if kind == "cpu":
        return "processors"
    memory = torch.cuda.get_device_properties(0).total_memory
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    name = torch.cuda.get_device_name()
    return f"{name} ({memory / 1e9:.0f} GB, CUDA {torch.version.cuda}, NCCL {nccl})"


def _line(run: Run, runs: Sequence[Run]) -> dict[str, str]:
    plain = {one.name: one.seconds for one in runs}.get(f"{PLAIN}, {run.precision}")
    memory, simulated = run.memory_bytes, run.simulated_memory_bytes
    return {
        "way": run.name,
        "placement": run.placement or "–",
        "ms": "failed" if run.seconds is None else f"{1e3 * run.seconds:.2f}",
        "over plain": _ratio(run.seconds, plain),
        "over busiest worker": _ratio(run.seconds, run.busiest_seconds),
        "over all computing": _ratio(run.seconds, run.computing_seconds),
        "simulated": _ratio(run.simulated_seconds, run.seconds),
        "memory, GB": f"{memory / 1e9:.2f}" if memory else "–",
        "simulated, GB": f"{simulated / 1e9:.2f}" if simulated else "–",
    }


def _summary(row: Found) -> dict[str, str]:
    return {
        "model": row.case.model,
        "operators": str(row.operators),
        "million weights": f"{row.parameter_bytes / 4e6:.1f}",
        "capture": f"{row.capture_seconds:.1f} s",
        "profile": f"{row.profile_seconds:.1f} s",
        "all operators": f"{1e3 * row.operators_seconds:.1f} ms",
        "loss of a training": " to ".join(f"{loss:.4g}" for loss in row.losses) or "–",
    }


def _ratio(value: float | None, reference: float | None) -> str:
    return f"{value / reference:.3f}×" if value and reference else "–"


STUDY = GpuStudy()
