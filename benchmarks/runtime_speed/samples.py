"""What is timed, with whom, and the samples that this gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from pydantic import Field

from benchmarks.machine import Machine
from benchmarks.torch_training import BaselineName
from drlpp.io.documents import Document, Record
from drlpp.models.task import Option
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

ASYNCHRONOUS = ("vanilla", "pipeoptim", "stash")
DEEPER = Method(policy="vanilla", in_flight_per_link=1)
"""NOAM leaves even stages no time for messages, nor replicas for each other; this does."""


class Case(Record):
    """A model of equal blocks, and how it is placed: blocks and accelerators of every stage."""

    model: str
    blocks: tuple[int, ...]
    replicas: tuple[int, ...]

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


class Contender(Record):
    """A way to train: this runtime with a method, or one of torch's own means.

    ``microbatches`` is 1 for those that have none.
    """

    ours: Method | None = None
    theirs: BaselineName | None = None
    microbatches: int = 1

    def __str__(self) -> str:
        if self.theirs:
            name = f"torch {self.theirs}"
        else:
            assert self.ours is not None
            name = self.ours.schedule
            if not self.ours.flushes:
                name = f"{name} {self.ours.policy}"
            if self.ours.in_flight_per_link:
                name = f"{name}, {self.ours.in_flight_per_link} more in flight per link"
        return f"{name}, M = {self.microbatches}" if self.microbatches > 1 else name

    @property
    def flushes(self) -> bool:
        """Whether the pipeline empties before every update."""
        return self.microbatches > 1


class Sample(Record):
    """One run of a contender in a case.

    Attributes:
        case, contender: what ran.
        repetition: which of its runs.
        seconds: of one update with a minibatch, in steady state.
        busiest_seconds: that the busiest worker computes for it: the processor's seconds divided
            by the worker's speed.
    """

    case: Case
    contender: Contender
    repetition: int
    seconds: float
    busiest_seconds: float


class Settings(Record):
    """What is measured and how; samples of other settings are not mixed.

    Attributes:
        models: options of every model, by the name of its function.
        straight: blocks of the stages of straight pipelines.
        replicated: blocks and replicas of the stages of others.
        microbatches: of schedules that flush.
        minibatches: of a sample, in addition to those that warm up.
        repetitions: samples of every contender in every case, taken in turns.
        speed: of every accelerator, in cores.
        emulation: ``dilation`` or ``control-groups``.
        optimizer: makes the updates.
    """

    models: dict[str, dict[str, Option]]
    straight: tuple[tuple[int, ...], ...]
    replicated: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
    microbatches: tuple[int, ...]
    minibatches: int
    repetitions: int
    speed: float
    emulation: str
    optimizer: OptimizerSpec

    def cases(self, model: str, accelerators: int) -> list[Case]:
        """Return straight pipelines of that many stages; for the most, replicated ones too."""
        cases = [
            Case(model=model, blocks=blocks, replicas=(1,) * accelerators)
            for blocks in self.straight
            if len(blocks) == accelerators
        ]
        if accelerators == max(self.accelerators):
            cases += [Case(model=model, blocks=b, replicas=r) for b, r in self.replicated]
        return cases

    @property
    def accelerators(self) -> list[int]:
        """The numbers of accelerators that clusters of their own have."""
        return sorted({len(blocks) for blocks in self.straight})

    def contenders(self, case: Case) -> Iterator[Contender]:
        """Yield who runs in a case: everybody where stages are even, else 1F1B in a few ways."""
        for policy in ASYNCHRONOUS if case.is_even else ASYNCHRONOUS[:2]:
            yield Contender(ours=Method(policy=policy))
        yield Contender(ours=DEEPER)
        if not case.is_even:
            return
        for microbatches in self.microbatches:
            gpipe = Method(schedule="gpipe", policy="sync", microbatches=microbatches)
            yield Contender(ours=gpipe, microbatches=microbatches)
            flushed = gpipe.model_copy(update={"schedule": "1f1b-flush"})
            yield Contender(ours=flushed, microbatches=microbatches)
        for microbatches in self.microbatches:
            yield Contender(theirs="pipelining gpipe", microbatches=microbatches)
            yield Contender(theirs="pipelining 1f1b", microbatches=microbatches)
        yield Contender(theirs="data parallel")


class SpeedSamples(Document):
    """All samples, as a file from which an interrupted run continues.

    ``differences`` says how far everybody's weights were from those that they should be.
    """

    kind: ClassVar[str] = "runtime-speed"

    settings: Settings
    machine: Machine
    samples: tuple[Sample, ...] = ()
    differences: dict[str, float] = Field(default_factory=dict)

    def has(self, case: Case, contender: Contender, repetition: int) -> bool:
        """Return whether a sample is there already."""
        key = (case, contender, repetition)
        return any((s.case, s.contender, s.repetition) == key for s in self.samples)
