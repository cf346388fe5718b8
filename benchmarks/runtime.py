"""How fast is the runtime, against what its workers compute, and against torch's own means?

All ways of training run in turns on the same emulated accelerators, with the same model, cuts,
optimizer and samples for every update. Before that, each has to train to the weights that plain
PyTorch gives (asynchronous methods: the reference executor). ``docs/results.md`` has the answers.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from pandas import DataFrame
from torch import Tensor

from benchmarks.models import MODELS, SMALL_MODELS, placement_of, reference
from benchmarks.study import Needs, Row, Study, this_machine
from benchmarks.torch_training import BaselineName, BaselineProcesses, BaselineRun
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import RunFailure
from drlpp.io.documents import Record
from drlpp.io.formatting import seconds_text
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, run_reference
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

NUMERICS_GOAL = 1e-4
_CHECKED_ROUNDS = 3
"""Updates per stage that weights are compared after: stages of 1F1B fall behind by one each."""
_WARM_UP_UPDATES = 2
_MINIBATCHES = 12
_SPEED = 0.1
"""Of every accelerator, in cores."""
_OPTIMIZER = OptimizerSpec()
VANILLA, PIPEOPTIM = "1f1b vanilla", "1f1b pipeoptim"
DEEPER = "1f1b vanilla, 1 more in flight per link"
"""NOAM leaves even stages no time for messages, nor replicas for each other; this does."""

_STRAIGHT = ((4, 4), (3, 5), (6, 2), (2, 2, 2, 2), (3, 2, 2, 1), (1, 2, 2, 3), (4, 2, 1, 1))
"""Blocks of the stages."""
_REPLICATED = (
    ((5, 3), (2, 1)),
    ((3, 5), (1, 2)),
    ((4, 2, 2), (2, 1, 1)),
    ((2, 4, 2), (1, 2, 1)),
    ((4, 4), (2, 2)),
)
"""Blocks and replicas of the stages."""


class Case(Record):
    """A model of equal blocks, and how it is placed.

    Attributes:
        model: name of its function in ``models.py``.
        blocks, replicas: of every stage.
        microbatches: of schedules that flush.
        minibatches: of a sample, in addition to those that warm up.
        repetitions: samples of every way of training, taken in turns.
    """

    model: str
    blocks: tuple[int, ...]
    replicas: tuple[int, ...]
    microbatches: tuple[int, ...] = (4, 8, 16)
    minibatches: int = _MINIBATCHES
    repetitions: int = 5

    def __str__(self) -> str:
        blocks = "-".join(map(str, self.blocks))
        if self.is_straight:
            return f"{self.model}, blocks {blocks}"
        return f"{self.model}, blocks {blocks}, accelerators {'-'.join(map(str, self.replicas))}"

    @property
    def is_straight(self) -> bool:
        """Whether no stage is replicated."""
        return max(self.replicas) == 1

    @property
    def is_even(self) -> bool:
        """Straight, with as many blocks in each stage: what schedules are compared on."""
        return self.is_straight and len(set(self.blocks)) == 1

    @property
    def options(self) -> dict[str, bool | int | float | str]:
        """Those of the model."""
        return (MODELS if self.minibatches == _MINIBATCHES else SMALL_MODELS)[self.model]


class Way(Record):
    """A way of training: this runtime with a method, or one of torch's own means.

    Attributes:
        name: of it.
        seconds: of one update in steady state, of each sample.
        busiest_seconds: that the busiest worker computes for it: the processor's seconds divided
            by the worker's speed.
        difference: of the weights after a few updates from those that they should be.
    """

    name: str
    seconds: tuple[float, ...]
    busiest_seconds: tuple[float, ...]
    difference: float


class Timed(Row):
    """All ways of training in a case."""

    case: Case
    ways: tuple[Way, ...]
    machine: str


Contender = Method | BaselineName


def contenders_of(case: Case) -> dict[str, tuple[Contender, int]]:
    """Return who runs in a case, and its microbatches: all where stages are even, else 1F1B."""
    policies = ("vanilla", "pipeoptim", "stash") if case.is_even else ("vanilla", "pipeoptim")
    found: dict[str, tuple[Contender, int]] = {
        f"1f1b {policy}": (Method(policy=policy), 1) for policy in policies
    }
    found[DEEPER] = Method(policy="vanilla", in_flight_per_link=1), 1
    if not case.is_even:
        return found
    for m in case.microbatches:
        for schedule in ("gpipe", "1f1b-flush"):
            method = Method(schedule=schedule, policy="sync", microbatches=m)
            found[f"{schedule}, M = {m}"] = method, m
    for m in case.microbatches:
        found[f"torch pipelining gpipe, M = {m}"] = "pipelining gpipe", m
        found[f"torch pipelining 1f1b, M = {m}"] = "pipelining 1f1b", m
    found["torch data parallel"] = "data parallel", 1
    return found


class RuntimeStudy(Study[Case, Timed]):
    """The runtime beside torch's own pipelines and data parallelism."""

    name = "runtime"
    question = "How fast is the runtime, against its busiest worker and torch's own means?"
    row = Timed
    needs = Needs(quiet=True, hours=1)

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return straight pipelines of two and four stages, and replicated ones."""
        if short:
            small = {"microbatches": (2,), "minibatches": 4, "repetitions": 1}
            return [_case("feed_forwards", (4, 4), (1, 1), **small)]
        placed = [*((blocks, (1,) * len(blocks)) for blocks in _STRAIGHT), *_REPLICATED]
        return [
            _case(model, *place, repetitions=seeds or 5) for model in MODELS for place in placed
        ]

    def run(self, case: Case) -> Timed:
        """Compare the weights of all ways of training, and time them in turns.

        Raises:
            RunFailure: something cannot be run, or does not give the right weights.
        """
        speeds = [_SPEED] * sum(case.replicas)
        captured = capture(reference(case.model, case.options))
        with (
            ClusterSession(captured, len(speeds), optimizer=_OPTIMIZER, speeds=speeds) as session,
            BaselineProcesses(speeds) as baselines,
        ):
            side = _SideBySide(case, captured, session, baselines)
            contenders = contenders_of(case)
            differences = {name: side.difference(*who) for name, who in contenders.items()}
            check_numerics(case, differences)
            samples: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
            for repetition in range(case.repetitions):
                # There and back: what drifts hits all alike.
                for name in samples if repetition % 2 == 0 else reversed(samples):
                    samples[name].append(side.times(*contenders[name]))
        return Timed(
            case=case,
            ways=tuple(
                Way(
                    name=name,
                    seconds=tuple(seconds for seconds, _ in found),
                    busiest_seconds=tuple(busiest for _, busiest in found),
                    difference=differences[name],
                )
                for name, found in samples.items()
            ),
            machine=this_machine(),
        )

    def table(self, rows: Sequence[Timed]) -> Mapping[str, DataFrame]:
        """Return medians, beside the busiest worker and 1F1B."""
        return {"Steady state": DataFrame(_line(row, way) for row in rows for way in row.ways)}


def _case(model: str, blocks: tuple[int, ...], replicas: tuple[int, ...], **more: object) -> Case:
    return Case.model_validate({"model": model, "blocks": blocks, "replicas": replicas, **more})


def _line(row: Timed, way: Way) -> dict[str, str]:
    vanilla = next((one for one in row.ways if one.name == VANILLA), way)
    median = statistics.median(way.seconds)
    faster = f"{_ratio(way.seconds, vanilla.seconds):.3f} ×"
    return {
        "case": str(row.case),
        "method": way.name,
        "an update": seconds_text(median),
        "over the busiest": f"{_ratio(way.seconds, way.busiest_seconds):.3f} ×",
        "samples/s": f"{int(row.case.options['batch_size']) / median:.1f}",
        "1f1b vanilla is faster by": "–" if way is vanilla else faster,
    }


def _ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median ratio of samples of one repetition: the machine's drift hits both alike."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


@dataclass(frozen=True)
class _SideBySide:
    """A session's workers and torch's processes, which take turns on emulated accelerators."""

    case: Case
    captured: CapturedModel
    session: ClusterSession
    baselines: BaselineProcesses

    @property
    def placement(self) -> Placement:
        return placement_of(self.captured.graph, self.case.blocks, self.case.replicas)

    def times(self, who: Contender, microbatches: int) -> tuple[float, float]:
        """Return an update's seconds in steady state, and what the busiest worker computes."""
        count = self.case.minibatches
        if isinstance(who, Method):
            outcome = self.session.measure(self.placement, count, who)
            if isinstance(outcome, FailedMeasurement):
                raise RunFailure(f"{self.case}, {who}: {outcome.reason}")
            busiest = max(usage.processor_seconds for usage in outcome.workers) / _SPEED
            return outcome.seconds_per_minibatch, busiest / outcome.minibatches
        results = self.baselines.run(self._run(who, microbatches, _WARM_UP_UPDATES + count))
        ends = [max(together) for together in zip(*(r.ends for r in results), strict=True)]
        busiest = max(sum(r.processor_seconds[_WARM_UP_UPDATES:]) for r in results) / _SPEED
        return (ends[-1] - ends[_WARM_UP_UPDATES - 1]) / count, busiest / count

    def _run(
        self, name: BaselineName, microbatches: int, updates: int, *, check: bool = False
    ) -> BaselineRun:
        return BaselineRun(
            name=name,
            model=self.captured.reference,
            blocks=self.case.blocks,
            microbatches=microbatches,
            optimizer=_OPTIMIZER,
            updates=updates,
            with_weights=check,
        )

    def difference(self, who: Contender, microbatches: int) -> float:
        """Return by how much weights after a few updates differ from plain PyTorch's.

        For asynchronous methods, the reference executor's. It is the largest of any weight's
        elements, relative to the largest element of that weight. The first of n stages makes n
        forwards before its first update: what asynchronous methods keep and predict shows only in
        updates well beyond these.
        """
        updates = _CHECKED_ROUNDS * self.session.accelerators
        if isinstance(who, Method):
            deployment = self.session.deploy(self.placement, who, _OPTIMIZER)
            self.session.run(deployment, updates)
            found, _ = self.session.collect(deployment)
        else:
            results = self.baselines.run(self._run(who, microbatches, updates, check=True))
            found = {n: torch.from_numpy(w) for r in results for n, w in r.weights.items()}
        if isinstance(who, Method) and not who.flushes:
            task = self.captured.task
            assert task.targets is not None
            data = Minibatches(task.inputs, task.targets)
            result = run_reference(
                self.captured, self.placement, data, updates, method=who, optimizer=_OPTIMIZER
            )
            wanted: Mapping[str, Tensor] = result.state
        else:
            wanted = plain_weights(self.captured, updates)
        assert found.keys() == wanted.keys()
        return max(
            ((found[name] - value).abs().max() / value.abs().max()).item()
            for name, value in wanted.items()
        )


def plain_weights(captured: CapturedModel, updates: int) -> dict[str, Tensor]:
    """Return the weights after ``updates`` of the module in an ordinary loop."""
    task = captured.reference.build()
    assert task.loss is not None
    assert task.targets is not None
    optimizer = _OPTIMIZER.find()(task.module.parameters(), **_OPTIMIZER.complete)
    for _ in range(updates):
        optimizer.zero_grad()
        task.loss(task.module(*task.inputs), task.targets).backward()
        optimizer.step()
    return {name: value.detach() for name, value in task.module.named_parameters()}


def check_numerics(case: Case, differences: Mapping[str, float]) -> None:
    """Check that all train to the same weights: else no speeds can be compared.

    Raises:
        RunFailure: naming one whose weights differ.
    """
    for name, difference in differences.items():
        if not difference <= NUMERICS_GOAL:
            raise RunFailure(
                f"{case}: {name} ends with weights that differ by {difference:.1e} from those that "
                f"it should have, more than {NUMERICS_GOAL:.0e}"
            )


STUDY = RuntimeStudy()
