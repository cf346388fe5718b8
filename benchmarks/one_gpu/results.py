"""What the study writes down."""

from __future__ import annotations

from pydantic import Field

from drlpp.io.documents import Record


class Run(Record):
    """A way to train a model, measured once.

    Attributes:
        name: what the page calls it.
        placement: replicas of every stage; empty of plain PyTorch.
        method: schedule, policy, precision.
        seconds: of a minibatch; None if it failed.
        busiest_seconds: what the worker that computes most computes for a minibatch.
        computing_seconds: what all workers together compute for one.
        simulated_seconds: by the simulator, with the profile of this device, on which its workers
            compute in turns.
        memory_bytes: the most that a worker took.
        simulated_memory_bytes: the most that a stage needs, by the simulator.
        failure: why there are no figures.
    """

    name: str
    placement: str
    method: str
    seconds: float | None = None
    busiest_seconds: float | None = None
    computing_seconds: float | None = None
    simulated_seconds: float | None = None
    memory_bytes: int | None = None
    simulated_memory_bytes: float | None = None
    failure: str = ""


class Link(Record):
    """What a message takes from one worker to another.

    Attributes:
        bytes_: of the message.
        seconds: there alone.
    """

    bytes_: int
    seconds: float


class Learned(Record):
    """What an agent found.

    Attributes:
        measured: placements that it ran.
        placement: the fastest.
        seconds: of a minibatch with it.
        took_seconds: everything, measurements included.
    """

    measured: int
    placement: str
    seconds: float
    took_seconds: float


class ModelResults(Record):
    """One model.

    Attributes:
        model: its name in the zoo.
        size: there, ``published`` or ``small``.
        options: of its factory, on top of the size's.
        operators: of its graph.
        parameter_bytes: of its weights.
        capture_seconds, profile_seconds: what these took.
        operators_seconds: forward and backward of all operators, one after the other.
        kept_bytes: what their forwards keep.
        runs: ways to train it.
        links: messages between stages.
        losses: mean loss of the first and of the last minibatches of a training; the same samples
            again and again, so the second has to be smaller.
        learned: None where there was no time, or it failed.
        failures: sections that did not come to an end, and why.
        seconds: everything.
    """

    model: str
    size: str
    options: dict[str, bool | int | float | str]
    operators: int = 0
    parameter_bytes: int = 0
    capture_seconds: float = 0.0
    profile_seconds: float = 0.0
    operators_seconds: float = 0.0
    kept_bytes: int = 0
    runs: tuple[Run, ...] = ()
    links: tuple[Link, ...] = ()
    losses: tuple[float, float] | None = None
    learned: Learned | None = None
    failures: dict[str, str] = Field(default_factory=dict)
    seconds: float = 0.0


class GpuTests(Record):
    """What ``tests/runtime/test_gpu.py`` said.

    Attributes:
        counts: the last line of its output.
        passed: whether all that were run did; without pytest none is.
        failed: names of tests.
        output: the end of what it printed, if something failed.
        seconds: everything.
    """

    counts: str
    passed: bool
    failed: tuple[str, ...]
    output: str
    seconds: float


class Results(Record):
    """Everything.

    Attributes:
        machine: processor, versions, day.
        device: name of the GPU, or what workers compute on.
        software: of the device: CUDA's and NCCL's versions, its memory.
        workers: how many share the device.
        tests: None if they were left out.
        models: one after the other.
        seconds: everything.
    """

    machine: str
    device: str
    software: str
    workers: int
    tests: GpuTests | None = None
    models: tuple[ModelResults, ...] = ()
    seconds: float = 0.0
