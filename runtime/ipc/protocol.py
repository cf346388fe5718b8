"""What passes between the controller and its workers.

In this order: what a worker is given when it starts, what a run does to weights, the commands that
the controller sends, and what workers answer. A command is answered once, by what is named behind
it in :data:`Command`; before that there may be signs of life. Files are in the session's folder, of
which every host has its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor

from drlpp.runtime.device.devices import Backend, DeviceFacts
from drlpp.schedule.actions import Action, MicrobatchId
from drlpp.schedule.analysis.messages_ahead import Ahead
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.batches import Batch
from drlpp.specs.cluster import DeviceChoice, Link
from drlpp.specs.optimizer_spec import OptimizerSpec

if TYPE_CHECKING:
    from drlpp.models.task import Task

Route = tuple[int, int]
"""A way from one worker to another."""

ParallelWay = Literal[
    "ddp", "ddp-bf16", "powersgd", "zero-1", "zero-2", "fsdp", "local-sgd", "diloco"
]
"""torch's own data parallelism: :mod:`drlpp.runtime.worker.parallel_loop` says what each is."""


@dataclass(frozen=True)
class Transport:
    """How the workers of a placement exchange tensors.

    With ``directed``, by a group for each direction of each pair, instead of tags in a group of
    all; with ``staged``, through the memory of the host.
    """

    backend: Backend = "gloo"
    directed: bool = False
    staged: bool = False


def transport_of(devices: Iterable[DeviceFacts]) -> Transport:
    """Choose the devices' own library where every worker has a GPU of its own, else Gloo.

    Two workers on one GPU cannot be in one group of NCCL, or of XCCL.
    """
    known = list(devices)
    backends = {device.backend for device in known}
    apart = {device.identity for device in known} - {""}
    if len(apart) == len(known) > 1 and len(backends) == 1 and backends != {"gloo"}:
        return Transport(backends.pop(), directed=True)
    return Transport(staged=any(device.type != "cpu" for device in known))


@dataclass(frozen=True)
class GroupSpec:
    """Workers that connect with each other: of a placement, a profile, or the ends of a link.

    Attributes:
        name: that the names of their groups begin with, never used twice.
        workers: all, in the order of their ranks.
        transport: how they exchange tensors.
        routes: from which to which anything will be sent.
        replicas: those that sum gradients, the worker that gets this among them.
    """

    name: str
    workers: tuple[int, ...]
    transport: Transport
    routes: tuple[Route, ...] = ()
    replicas: tuple[int, ...] = ()


@dataclass(frozen=True)
class StoreAddress:
    """Where the workers of a session find each other; ``token`` begins all of its keys."""

    address: str
    port: int
    token: str = field(repr=False)


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker is given when it starts.

    Attributes:
        worker: its number.
        place: its number among the workers of its host.
        address: of its host, where other workers reach it.
        store: where it finds them.
        device: that it computes on.
        speed: below 1 it sleeps after every pass, as if it took so much longer.
        memory_bytes: of its accelerator; None for all that there is.
        core: that it computes on; None leaves it to the system.
        own_group: it leaves the process group that it starts in, since whoever started that kills
            the whole of it, and the worker has files to remove.
        on_one_host: all workers of the session are on its host.
        links: to all other workers, if it emulates slower ones.
    """

    worker: int
    place: int
    address: str
    store: StoreAddress
    device: DeviceChoice = DeviceChoice.CPU
    speed: float = 1.0
    memory_bytes: float | None = None
    core: int | None = None
    own_group: bool = False
    on_one_host: bool = False
    links: Mapping[int, Link] | None = None


@dataclass(frozen=True)
class WeightPlan:
    """What a run does to weights that are updated together.

    Attributes:
        uses: which of their versions every part uses.
        rates: the learning rate of every update of the run, from that which makes version 1.
        shared: whether several parts or replicas contribute to one update.
        root: of weights that several stages hold, the one that sums the gradients.
        others: those whose gradients it adds, in their order.
    """

    uses: Mapping[MicrobatchId, WeightUse]
    rates: Sequence[float]
    shared: bool = False
    root: int | None = None
    others: tuple[int, ...] = ()


@dataclass(frozen=True)
class RunPlan:
    """What a run does with a stage, in addition to its actions.

    Attributes:
        weights: by tie, or ``OWN`` for the weights that only this stage holds.
        recomputed: parts whose activations are computed again.
        finite: stop at a loss that is infinite or not a number.
    """

    weights: Mapping[int, WeightPlan]
    recomputed: frozenset[MicrobatchId] = frozenset()
    finite: bool = False


MODEL_FILE, SAMPLES_FILE = "model.pt", "samples.pt"
"""Of the model's parameters and buffers, and of samples to work on."""


@dataclass(frozen=True)
class Load:
    """Read the model, and samples to work on: a worker's first command."""


@dataclass(frozen=True)
class Deploy:
    """Hold a stage of a placement, or two, from now on, with the model's weights.

    Attributes:
        group: the workers of the whole placement, and those that hold this stage.
        stages: pickled, the ``StageProgram`` of every stage held.
        method, optimizer, seed: as in ``StageRunner``.
        delays: for every stage held, as in ``StageRunner``.
        checkpoint_file: with weights, buffers and optimizer state to continue from instead.
    """

    group: GroupSpec
    stages: bytes
    method: Method
    optimizer: OptimizerSpec
    delays: tuple[Mapping[int, int], ...]
    seed: int
    checkpoint_file: str | None = None


@dataclass(frozen=True)
class Stream:
    """Minibatches that come in files during a run.

    Files, or chunks, have 1, 2, 4 … ``most``, ``most``, … of them: workers begin with the first as
    soon as it is loaded. The last may have fewer. No ``name`` is used twice.
    """

    name: str
    most: int

    def place(self, minibatch: int) -> tuple[int, int]:
        """Return which chunk has a minibatch, and where in it."""
        number = minibatch + 1
        size = min(1 << number.bit_length() - 1, self.most)
        return size.bit_length() - 2 + number // size, number % size

    def file_of(self, chunk: int) -> str:
        """Return the name of a file."""
        return f"{self.name}-{chunk}.pt"


@dataclass(frozen=True)
class Release:
    """Hold no stage any more."""


@dataclass(frozen=True)
class Run:
    """Perform actions with the deployed stages.

    Attributes:
        actions: of this worker.
        plans: of a training run, for every stage held.
        order: which samples make which minibatch; None for all samples every time.
        stream: where minibatches come from instead of samples in memory.
        first_minibatch: how many minibatches earlier runs of this training had.
        microbatches: parts of a minibatch.
        ahead: of its messages.
        evaluation: the same in evaluation mode, for forward schedules.
    """

    actions: tuple[Action, ...]
    plans: tuple[RunPlan, ...]
    order: Tensor | None
    first_minibatch: int
    microbatches: int
    ahead: Ahead
    stream: Stream | None = None
    evaluation: bytes | None = None


def held_file(worker: int) -> str:
    """Return the name of a file with what a worker holds."""
    return f"worker-{worker}.pt"


@dataclass(frozen=True)
class Collect:
    """Write weights, buffers and optimizer state of the deployed stages to :func:`held_file`.

    With a ``storage``, a folder's path or a URL, the file is put into a ``folder`` there, and its
    weights have to be finite.
    """

    storage: str = ""
    folder: str = ""


@dataclass(frozen=True)
class TimeTraining:
    """Train the model in one of a profile's ways, and time every pass.

    The loss is counted with the last stage, as it is computed where that is.

    Attributes:
        programs: pickled: the stages, performed in a row on one worker.
        optimizer: updates the weights.
        repeats: timed passes, fewer if these take too long and gradients are not shared.
        microbatches: parts of a minibatch, one of which is trained on.
        in_halves: whether backwards come in halves.
        alone: every stage is an operator; what it keeps is counted, and no worker rests after it.
        method: whose predictions of weights are timed, too.
        group: the workers that measure at the same time, if they share gradients.
    """

    programs: bytes
    optimizer: OptimizerSpec
    repeats: int
    microbatches: int = 1
    in_halves: bool = False
    alone: bool = False
    method: Method | None = None
    group: GroupSpec | None = None


@dataclass(frozen=True)
class TimeLink:
    """Time messages from one worker to another; both get the command.

    ``repeats`` of each size, fewer if these take too long, in a new group of the two, or by default
    in that of the deployment.
    """

    sender: int
    receiver: int
    sizes_bytes: tuple[int, ...]
    repeats: int
    group: GroupSpec | None = None


@dataclass(frozen=True)
class ParallelTraining:
    """How a module is trained by torch's own data parallelism.

    ``every`` so many updates weights are averaged, if only then; the seed is that of dropout.
    """

    way: ParallelWay
    method: Method
    optimizer: OptimizerSpec
    seed: int
    every: int = 1


@dataclass(frozen=True)
class ParallelWork:
    """What all ranks train on, in order.

    Attributes:
        task: whose module is trained.
        minibatches: inputs and targets.
        ends: whether the last one ends an epoch.
        states: of every rank, to continue from; none at the begin. If it is given, what ranks hold
            in the end is kept.
    """

    task: Task
    minibatches: Sequence[tuple[Batch, Batch]]
    ends: bool = False
    states: Sequence[Mapping[str, Any]] | None = None


@dataclass(frozen=True)
class ParallelStint:
    """What came of it.

    Attributes:
        seconds: from the first minibatch's begin to the last one's end.
        states: of every rank.
        model: the module's state; of local SGD and DiLoCo the mean.
    """

    seconds: float
    states: Sequence[Mapping[str, Any]]
    model: Mapping[str, Tensor]


@dataclass(frozen=True)
class TrainParallel:
    """Train as one rank of torch's own data parallelism.

    ``work_file`` has a pickled :class:`ParallelWork`, and what is kept is in :func:`held_file`.
    """

    training: ParallelTraining
    work_file: str
    group: GroupSpec


Command = (
    Load  # DeviceFacts, of the device that it will be trained on
    | Deploy  # why stages are not compiled, by their number
    | Release
    | Run  # RunResult
    | Collect
    | TimeTraining  # TrainingTimes
    | TimeLink  # of the sender, median seconds of a message by its size in bytes
    | TrainParallel  # RunResult, with the times of every minibatch
)


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

    ``times`` are ``time.perf_counter`` seconds, an entry an action. ``weight_bytes`` is one version
    of the weights, ``peak_weight_bytes`` what all versions that were held took at most.
    ``message_bytes`` is the largest message to every worker that got any, ``bucket_bytes`` the
    largest bucket of gradients that was summed over replicas.
    ``skipped_updates`` changed nothing, since their gradients were not finite.
    """

    times: list[tuple[float, float]]
    losses: dict[MicrobatchId, float] = field(default_factory=dict)
    scores: dict[MicrobatchId, Tensor] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    weight_bytes: int = 0
    peak_weight_bytes: int = 0
    message_bytes: dict[int, int] = field(default_factory=dict)
    bucket_bytes: int = 0
    skipped_updates: int = 0

    def later(self, seconds: float) -> RunResult:
        """Return the same with times of another clock, which is ``seconds`` ahead."""
        times = [(begin + seconds, end + seconds) for begin, end in self.times]
        return replace(self, times=times)


@dataclass(frozen=True)
class TrainingTimes:
    """What a worker found in one of a profile's trainings.

    Attributes:
        device: that it ran on, by name.
        seconds: by ``forward``, ``backward``, ``second half`` of a backward or ``update``, for
            every stage, of every repetition.
        kept_bytes: what the forward of every operator keeps for the backward, if it was counted.
        prediction_seconds: of lending predicted weights, all of them; none if the method does not.
    """

    device: str
    seconds: dict[str, list[list[float]]]
    kept_bytes: list[int]
    prediction_seconds: list[float]
