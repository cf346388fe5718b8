"""What workers answer to the controller's commands, and what they say meanwhile."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

from torch import Tensor

from drlpp import errors
from drlpp.errors import NotFinite, WorkerLost
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.schedule.actions import MicrobatchId


@dataclass(frozen=True)
class Done:
    """The command was carried out."""


@dataclass(frozen=True)
class Ready:
    """The model is read, and this is the device that it will be trained on."""

    device: DeviceFacts


@dataclass(frozen=True)
class Deployed:
    """A worker holds its stage; how long that took.

    Attributes:
        loading_seconds: giving up the old stage, and loading the program of the new one.
        connecting_seconds: to the other workers.
        building_seconds: weights, optimizer and weight policy.
    """

    loading_seconds: float
    connecting_seconds: float
    building_seconds: float


@dataclass(frozen=True)
class Progress:
    """A run makes progress: the last stage's weights contain the minibatches before ``through``.

    ``losses`` are those of the parts that passed since the last report, at least one.
    """

    through: int
    losses: dict[MicrobatchId, float]

    @property
    def loss(self) -> float:
        """The mean of the losses."""
        return sum(self.losses.values()) / len(self.losses)


@dataclass(frozen=True)
class Working:
    """A worker is not done, and not hung either."""


@dataclass(frozen=True)
class Reading:
    """A worker wants a chunk of a stream, and needs none before number ``oldest_needed``."""

    wanted: int
    oldest_needed: int


NOTHING_READ = Reading(wanted=-1, oldest_needed=sys.maxsize)
"""The reading of a worker whose stage needs neither inputs nor targets."""


@dataclass(frozen=True)
class RunResult:
    """What a worker saw in a run.

    ``times`` are ``time.perf_counter`` seconds, an entry an action, ``processor_seconds`` what each
    took of the processor; ``predictions`` are times when
    weights were moved to those that a pass uses, or back. ``weight_bytes`` is one version of the
    stage's weights, ``peak_weight_bytes`` what all versions that were held took at most.
    ``message_bytes`` is the largest message to every worker that got any, ``bucket_bytes`` the
    largest bucket of gradients that was summed over replicas, 0 without any. ``skipped_updates``
    changed nothing, since their gradients were not finite.
    """

    times: list[tuple[float, float]]
    losses: dict[MicrobatchId, float]
    scores: dict[MicrobatchId, Tensor]
    peak_memory_bytes: int
    bytes_sent: int
    weight_bytes: int = 0
    peak_weight_bytes: int = 0
    message_bytes: dict[int, int] = field(default_factory=dict)
    bucket_bytes: int = 0
    predictions: list[tuple[float, float]] = field(default_factory=list)
    processor_seconds: list[float] = field(default_factory=list)
    skipped_updates: int = 0

    def later(self, seconds: float) -> RunResult:
        """Return the same with times of another clock, which is ``seconds`` ahead."""
        return replace(
            self,
            times=[(begin + seconds, end + seconds) for begin, end in self.times],
            predictions=[(begin + seconds, end + seconds) for begin, end in self.predictions],
        )

    def after(self, earlier: RunResult) -> RunResult:
        """Return this result together with that of the segment before."""
        return RunResult(
            times=earlier.times + self.times,
            processor_seconds=earlier.processor_seconds + self.processor_seconds,
            losses=earlier.losses | self.losses,
            scores=earlier.scores | self.scores,
            peak_memory_bytes=max(earlier.peak_memory_bytes, self.peak_memory_bytes),
            bytes_sent=earlier.bytes_sent + self.bytes_sent,
            weight_bytes=self.weight_bytes,
            peak_weight_bytes=max(earlier.peak_weight_bytes, self.peak_weight_bytes),
            message_bytes={
                worker: max(earlier.message_bytes.get(worker, 0), self.message_bytes.get(worker, 0))
                for worker in earlier.message_bytes | self.message_bytes
            },
            bucket_bytes=max(earlier.bucket_bytes, self.bucket_bytes),
            predictions=earlier.predictions + self.predictions,
            skipped_updates=earlier.skipped_updates + self.skipped_updates,
        )


@dataclass(frozen=True)
class StageTimes:
    """Seconds of every repetition, for every stage of a model.

    Where backwards came in halves, ``backward`` has the first and ``backward_weight`` the second.
    """

    forward: list[list[float]]
    backward: list[list[float]]
    update: list[list[float]]
    backward_weight: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class OperatorTimes:
    """What profiling found.

    Attributes:
        device: that it ran on, by name.
        operators: when every operator is a stage.
        parts: when the model is cut into a few stages.
        halves: the same parts, with backwards in halves.
        whole: when it is one stage.
        microbatch: when it is one stage, and gets one of ``microbatches`` equal parts of a
            minibatch; None if minibatches cannot be divided.
        shared: when the model is one stage, with gradients summed over replicas.
        kept_bytes: what the forward of every operator keeps for the backward.
        prediction_seconds: of lending predicted weights, all of them; none if the method does not.
    """

    device: str
    operators: StageTimes
    parts: StageTimes
    halves: StageTimes
    whole: StageTimes
    shared: StageTimes
    kept_bytes: list[int]
    prediction_seconds: list[float]
    microbatch: StageTimes | None = None
    microbatches: int = 1


@dataclass(frozen=True)
class LinkTimes:
    """Median seconds of one message, by its size in bytes."""

    seconds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The command failed; ``failure`` is the name of an error class of ``drlpp.errors``.

    ``minibatch`` is what a :class:`~drlpp.errors.NotFinite` knows, and ``worker`` the one that a
    :class:`~drlpp.errors.WorkerLost` is about, where it is known.
    """

    failure: str
    reason: str
    minibatch: int | None = None
    worker: int | None = None

    @property
    def error(self) -> Exception:
        """The error for the controller to raise."""
        kind: type[Exception] = getattr(errors, self.failure)
        if kind is NotFinite:
            return NotFinite(self.reason, self.minibatch)
        if kind is WorkerLost and self.worker is not None:
            return WorkerLost(self.reason, [self.worker])
        return kind(self.reason)


Answer = (
    Done
    | Ready
    | Deployed
    | Progress
    | Working
    | Reading
    | RunResult
    | OperatorTimes
    | LinkTimes
    | Failed
)
