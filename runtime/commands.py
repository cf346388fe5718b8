"""What the controller tells its workers, and what they answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from drlpp.optimizer_spec import OptimizerSpec
from drlpp.runtime.minibatches import Part
from drlpp.schedule import Action, WeightVersions
from drlpp.training_options import PolicyName


@dataclass(frozen=True)
class LoadModel:
    """Read the model's parameters and buffers, and samples to work on, from files."""

    state_path: str
    samples_path: str


@dataclass(frozen=True)
class LoadSamples:
    """Read other samples: ``(inputs, targets)``, samples first."""

    samples_path: str


@dataclass(frozen=True)
class Deploy:
    """Hold a stage of a placement from now on, with the weights of ``state_path``.

    Attributes:
        name: of this deployment; names its communication groups, never used twice.
        workers: of the whole placement, in the order of their ranks.
        replicas: the workers that hold this stage.
        stage: the pickled program of the stage, for the last stage with the loss.
        policy, optimizer, stale, shared_updates, seed: as in ``StageRunner``.
        timeout_seconds: after which a message counts as lost.
        checkpoint_path: a file with weights, buffers and optimizer state to go on from.
    """

    name: str
    workers: tuple[int, ...]
    replicas: tuple[int, ...]
    stage: bytes
    policy: PolicyName
    optimizer: OptimizerSpec
    stale: bool
    shared_updates: bool
    seed: int
    timeout_seconds: float
    checkpoint_path: str | None = None


@dataclass(frozen=True)
class Run:
    """Perform actions with the deployed stage.

    Attributes:
        actions: of this worker.
        versions: of the parts that this worker processes.
        order: which samples make which minibatch; None for all samples every time.
        first_minibatch: how many minibatches earlier runs of this training had.
        microbatches: parts of a minibatch.
        posted: how many receives to post ahead.
        evaluation: the pickled program in evaluation mode with the score, for forward schedules.
    """

    actions: tuple[Action, ...]
    versions: Mapping[Part, WeightVersions]
    order: Tensor | None
    first_minibatch: int
    microbatches: int
    posted: int
    evaluation: bytes | None = None


@dataclass(frozen=True)
class Collect:
    """Write weights, buffers and optimizer state of the deployed stage to ``path``."""

    path: str


@dataclass(frozen=True)
class ProfileOperators:
    """Time every operator alone: pickled programs of a cut with one operator in each stage."""

    programs: bytes
    optimizer: OptimizerSpec
    repeats: int


@dataclass(frozen=True)
class ProfileLink:
    """Time messages of the given sizes between the first two workers."""

    name: str
    sizes_bytes: tuple[int, ...]
    repeats: int


@dataclass(frozen=True)
class Stop:
    """End the process."""


Command = LoadModel | LoadSamples | Deploy | Run | Collect | ProfileOperators | ProfileLink | Stop


@dataclass(frozen=True)
class Done:
    """The command was carried out."""


@dataclass(frozen=True)
class Progress:
    """A run goes on: the last stage has made ``version`` of its weights since it began."""

    version: int


@dataclass(frozen=True)
class RunResult:
    """What a worker saw in a run; times are ``time.perf_counter`` seconds, an entry an action."""

    times: list[tuple[float, float]]
    losses: dict[Part, float]
    scores: dict[Part, Tensor]
    peak_memory_bytes: int
    bytes_sent: int


@dataclass(frozen=True)
class OperatorTimes:
    """Median forward and backward seconds of every operator, and of updating a byte."""

    forward_seconds: list[float]
    backward_seconds: list[float]
    update_seconds_per_byte: float = 0.0


@dataclass(frozen=True)
class LinkTimes:
    """Median seconds of one message, by its size in bytes."""

    seconds: dict[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Failed:
    """The command failed; ``failure`` is the name of an error class of ``drlpp.errors``."""

    failure: str
    reason: str


Answer = Done | Progress | RunResult | OperatorTimes | LinkTimes | Failed
