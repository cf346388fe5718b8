"""What is measured of one model, in sections; one that fails does not end the others."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from benchmarks.one_gpu.results import Learned, Link, ModelResults, Run
from drlpp.agents import hyperparameters_of, learn_placement
from drlpp.capturing.capture import capture
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.envs import CostPrior, MeasurementMemory
from drlpp.errors import RunFailure
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Option
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.planners import PLANNERS, PlanningProblem
from drlpp.racing.plain import measure_plain
from drlpp.racing.rivals import PLAIN
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import Method
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster

_HALF = {"precision": "bfloat16", "recompute": True}


def ways(parts: int) -> dict[str, tuple[str, Method]]:
    """Return what is measured, by name: kind of placement and method."""
    return {
        "one stage": ("one", Method(schedule="gpipe", policy="sync")),
        "one stage, bfloat16": (
            "one",
            Method(schedule="gpipe", policy="sync", precision="bfloat16"),
        ),
        "stashing": ("stages", Method(policy="stash")),
        "PipeOptim": ("stages", Method()),
        "PipeOptim, M = D": ("stages", Method(microbatches=parts)),
        "PipeOptim, recomputing": ("stages", Method(recompute=True)),
        "PipeOptim, recomputing, bfloat16": ("stages", Method.model_validate(_HALF)),
        "stashing, recomputing": ("stages", Method(policy="stash", recompute=True)),
        "flushed 1F1B": (
            "stages",
            Method(schedule="1f1b-flush", policy="sync", microbatches=parts),
        ),
        "data parallel": (
            "replicas",
            Method(schedule="gpipe", policy="sync", microbatches=parts),
        ),
    }


@dataclass
class Bench:
    """Measures one model on workers that share a device.

    Attributes:
        model: its name in the zoo.
        size: ``published`` or ``small``.
        options: of its factory, on top of its size's.
        workers: how many.
        device: what they compute on.
        minibatches: of a measurement.
        budget: placements that the agent measures.
        folder: for the agent's files, the profile and the cluster.
        deadline: when to begin nothing more, by ``time.monotonic``.
        note: called with a line for every section.
        keep: called with what there is after every section.
    """

    model: str
    size: str
    options: dict[str, Option]
    workers: int
    device: str
    minibatches: int
    budget: int
    folder: Path
    deadline: float
    note: Callable[[str], None]
    keep: Callable[[ModelResults], None]
    found: dict[str, object] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    _begin: float = field(init=False)

    def measure(self) -> None:
        """Do everything there is time for."""
        self._begin = time.monotonic()
        self.found |= {"model": self.model, "size": self.size, "options": self.options}
        self.found["failures"] = self.failures
        self._section("capture", self._capture)

    def _section(self, name: str, do: Callable[[], None]) -> None:
        """Do a part, and note what fails, whatever it is: the other parts count all the same."""
        if not self._in_time():
            self.failures[name] = "no time was left"
        else:
            self.note(f"{self.model}: {name}")
            try:
                do()
            except Exception as failure:
                self.failures[name] = f"{type(failure).__name__}: {failure}"
                self.note(f"{self.model}: {name} failed: {failure}")
        seconds = time.monotonic() - self._begin
        self.keep(ModelResults.model_validate(self.found | {"seconds": seconds}))

    def _in_time(self) -> bool:
        return time.monotonic() < self.deadline

    def _capture(self) -> None:
        started = time.monotonic()
        captured = capture(ModelReference.named(self.model, self.size, **self.options))
        self.found |= {
            "capture_seconds": time.monotonic() - started,
            "operators": len(captured.graph),
            "parameter_bytes": captured.graph.parameter_bytes,
        }
        with ClusterSession(captured, self.workers, device=self.device) as session:
            self._section("plain PyTorch", lambda: self._plain(session))
            self._section("profile", lambda: self._profile(session))

    def _profile(self, session: ClusterSession) -> None:
        started = time.monotonic()
        profile, cluster = session.profile(repeats=10)
        self.found |= {
            "profile_seconds": time.monotonic() - started,
            "operators_seconds": sum(profile.seconds),
            "kept_bytes": sum(operator.kept_bytes for operator in profile.operators),
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        write_document(self.folder / f"{self.model}-profile.json", profile)
        write_document(self.folder / f"{self.model}-cluster.json", cluster)
        problem = PlanningProblem(Workload.of(profile), cluster, replicate=False)
        # Stages are balanced by the profile, and none has replicas.
        chosen = {
            "one": Placement.from_assignment([0] * len(profile.graph), [0]),
            "replicas": PLANNERS["data-parallel"](problem).placement,
            "stages": PLANNERS["gpipe"](problem).placement,
        }
        self._section("training", lambda: self._train(session, chosen["stages"]))
        self._section("placements", lambda: self._placements(session, profile, cluster, chosen))
        self._section("agent", lambda: self._learn(session, profile, cluster))

    def _plain(self, session: ClusterSession) -> None:
        """Measure the user's module in an ordinary loop."""
        threads = None if self.device == "cuda" else 1
        for precision in ("float32", "bfloat16"):
            method = Method.model_validate(
                {"schedule": "gpipe", "policy": "sync", "precision": precision}
            )
            if self._in_time():
                outcome = measure_plain(session, threads, self.minibatches, method)
                self._add(self._run(f"{PLAIN}, {precision}", "", str(method), outcome))

    def _placements(
        self,
        session: ClusterSession,
        profile: Profile,
        cluster: Cluster,
        chosen: dict[str, Placement],
    ) -> None:
        links: dict[int, float] = {}
        for name, (kind, method) in ways(self.workers).items():
            if not self._in_time():
                self.failures[name] = "no time was left"
                continue
            outcome = session.measure(chosen[kind], self.minibatches, method)
            run = self._run(name, chosen[kind].configuration, str(method), outcome)
            if isinstance(outcome, Measurement):
                links |= {link.bytes_: link.seconds for link in outcome.links}
            if method.precision != session.method.precision:
                # The profile's times are those of the session's precision.
                self._add(run)
                continue
            simulation = simulate(
                Workload.of(profile, method),
                cluster,
                chosen[kind],
                method,
                self.minibatches,
                MemoryModel.of(method, session.optimizer),
            )
            self._add(
                run.model_copy(
                    update={
                        "simulated_seconds": simulation.seconds_per_minibatch,
                        "simulated_memory_bytes": max(simulation.memory_bytes),
                    }
                )
            )
        self.found["links"] = tuple(
            Link(bytes_=size, seconds=seconds) for size, seconds in sorted(links.items())
        )

    def _add(self, run: Run) -> None:
        runs = self.found.get("runs", ())
        assert isinstance(runs, tuple)
        self.found["runs"] = (*runs, run)

    def _run(self, name: str, placement: str, method: str, outcome: Outcome) -> Run:
        run = Run(name=name, placement=placement, method=method)
        if isinstance(outcome, FailedMeasurement):
            return run.model_copy(update={"failure": outcome.reason})
        busy = [usage.busy_seconds / outcome.minibatches for usage in outcome.workers]
        return run.model_copy(
            update={
                "seconds": outcome.seconds_per_minibatch,
                "busiest_seconds": max(busy, default=None),
                "computing_seconds": sum(busy) if busy else None,
                "memory_bytes": max((u.peak_memory_bytes for u in outcome.workers), default=None),
            }
        )

    def _train(self, session: ClusterSession, stages: Placement) -> None:
        """Train on the example minibatch with PipeOptim; its loss has to fall."""
        deployment = session.deploy(stages, Method())
        _, results = session.run(deployment, 3 * self.minibatches)
        losses = {part: loss for result in results.values() for part, loss in result.losses.items()}
        values = [losses[part] for part in sorted(losses)]
        share = max(1, len(values) // 10)
        self.found["losses"] = fmean(values[:share]), fmean(values[-share:])

    def _learn(self, session: ClusterSession, profile: Profile, cluster: Cluster) -> None:
        started = time.monotonic()
        folder = self.folder / self.model
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        memory = MeasurementMemory(session, self.minibatches, folder / "measurements.jsonl")
        learn_placement(
            memory,
            folder,
            hyperparameters=hyperparameters_of("guided"),
            budget=self.budget,
            seed=0,
            declared=CostPrior.of(
                profile, cluster, session.method, MemoryModel.of(session.method, session.optimizer)
            ),
        )
        (candidate, _), *_ = memory.fastest(1)
        # The least of several measurements flatters: the winner is measured anew.
        again = session.measure(candidate, self.minibatches)
        if not isinstance(again, Measurement):
            raise RunFailure(again.reason)
        self.found["learned"] = Learned(
            measured=memory.distinct,
            placement=candidate.placement.configuration,
            seconds=again.seconds_per_minibatch,
            took_seconds=time.monotonic() - started,
        )
