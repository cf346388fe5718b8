"""What the controller sends to its workers.

Files are named in the session's folder, of which every host has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from drlpp.runtime.ipc.run_plan import RunPlan, TiedSpec
from drlpp.runtime.ipc.transport_choice import Route, Transport
from drlpp.schedule.actions import Action
from drlpp.schedule.method import Method
from drlpp.specs.device_choice import DeviceChoice
from drlpp.specs.optimizer_spec import OptimizerSpec


@dataclass(frozen=True)
class LoadModel:
    """Read the model's parameters and buffers, and samples to work on, from files.

    The first command of every worker; ``device`` is what it is to compute on.
    """

    state_file: str
    samples_file: str
    device: DeviceChoice = DeviceChoice.CPU


@dataclass(frozen=True)
class LoadSamples:
    """Read other samples: ``(inputs, targets)``, samples first."""

    samples_file: str


@dataclass(frozen=True)
class Deploy:
    """Hold a stage of a placement, or two, from now on, with the weights of ``state_file``.

    Attributes:
        name: of this deployment; names its communication groups, never used twice.
        workers: of the whole placement, in the order of their ranks.
        replicas: the workers that hold this stage.
        stages: pickled, for every stage held a ``StageInShape`` for each shape of the task.
        method, optimizer, delay, seed: as in ``StageRunner``.
        checkpoint_file: a file with weights, buffers and optimizer state to continue from.
        transport: how the workers exchange tensors.
        ways: from which worker to which anything will be sent, in the whole placement.
        in_flight: also with the parts that were in flight.
        ties: for every stage held what it needs to know of the ties whose weights it holds.
    """

    name: str
    workers: tuple[int, ...]
    replicas: tuple[int, ...]
    stages: bytes
    method: Method
    optimizer: OptimizerSpec
    delay: int
    seed: int
    transport: Transport
    routes: tuple[Route, ...]
    ties: tuple[Mapping[int, TiedSpec], ...]
    checkpoint_file: str | None = None
    in_flight: bool = False


@dataclass(frozen=True)
class Stream:
    """Minibatches that come in files during a run.

    Attributes:
        name: never used twice.
        chunk_minibatches: in one file; the last may hold fewer.
        first: the minibatch of the run that the first file begins with.
    """

    name: str
    chunk_minibatches: int
    first: int

    def file_of(self, chunk: int) -> str:
        """Return the name of a file."""
        return f"{self.name}-{chunk}.safetensors"


@dataclass(frozen=True)
class Release:
    """Hold no stage any more."""


@dataclass(frozen=True)
class Run:
    """Perform actions with the deployed stage.

    Attributes:
        actions: of this worker.
        plans: of the training run, for every stage held; empty ones for an evaluation.
        order: which samples make which minibatch; None for all samples every time.
        stream: where minibatches come from instead of samples in memory.
        first_minibatch: how many minibatches earlier runs of this training had.
        microbatches: parts of a minibatch.
        posted: how many receives to post ahead.
        goes_on: with the parts in flight of the run before, or of the checkpoint.
        evaluation: the same in evaluation mode, for forward schedules.
    """

    actions: tuple[Action, ...]
    plans: tuple[RunPlan, ...]
    order: Tensor | None
    first_minibatch: int
    microbatches: int
    posted: int
    goes_on: bool = False
    stream: Stream | None = None
    evaluation: bytes | None = None


@dataclass(frozen=True)
class Collect:
    """Write weights, buffers and optimizer state of the deployed stage to ``file``.

    Attributes:
        file: in the session's folder.
        in_flight: with everything of the parts in flight.
        storage: where the file is stored instead, as a folder's path or a URL. Weights that are not
            finite are not.
        name: of the file there.
        weights: false leaves weights and the optimizer's state to another replica.
    """

    file: str
    in_flight: bool = False
    storage: str = ""
    name: str = ""
    weights: bool = True


@dataclass(frozen=True)
class ProfileOperators:
    """Time every operator alone, and all together.

    Attributes:
        programs: pickled: those of a cut with one operator in each stage, of a cut into a few
            parts, that of a single stage, the same for a microbatch or None, and the loss.
        microbatches: of which that one is for.
        method, optimizer: what updates and predictions are timed for.
        repeats: timed passes, after some that warm up; fewer if these take too long.
        name: of the group of ``workers``, which measure at the same time; never used twice.
        transport: how they share gradients.
    """

    programs: bytes
    microbatches: int
    method: Method
    optimizer: OptimizerSpec
    repeats: int
    name: str
    workers: tuple[int, ...]
    transport: Transport


@dataclass(frozen=True)
class TimeLink:
    """Time messages from one worker to another; both get the command.

    Attributes:
        sender, receiver: the two workers.
        sizes_bytes: of the messages.
        repeats: timed messages of each size, fewer if these take too long.
        name: of a new group of the two, never used twice; None to use that of the deployment.
        transport: of a new group.
    """

    sender: int
    receiver: int
    sizes_bytes: tuple[int, ...]
    repeats: int
    name: str | None = None
    transport: Transport = field(default_factory=Transport)


@dataclass(frozen=True)
class Stop:
    """End the process."""


Command = (
    LoadModel | LoadSamples | Deploy | Release | Run | Collect | ProfileOperators | TimeLink | Stop
)
