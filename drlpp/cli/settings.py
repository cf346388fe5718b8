"""Settings: what a user states of a model, its method, optimizer, workers, data and search.

Each section is a tree's branch: its fields are options of commands (``commands.py``), keys of
``--config`` files, and its methods return what the Python interface takes: :class:`Method`,
:class:`OptimizerSpec`, the arguments of :class:`ClusterSession`.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
import yaml

from drlpp.errors import InvalidCluster, InvalidInput
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.runtime.ipc.time_limits import checked_timeout
from drlpp.schedule.kinds.registry import training_kinds
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import policy_help
from drlpp.specs.device_choice import DeviceChoice

if TYPE_CHECKING:
    from drlpp.models.model_reference import ModelReference
    from drlpp.models.task import Option
    from drlpp.planners import Space, Vary
    from drlpp.racing.to_loss import RaceOptions
    from drlpp.specs.cluster import Cluster
    from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup

CLUSTER_FILES = (".yaml", ".yml", ".json")

MODEL = typer.Argument(
    help="Name in the zoo, package.module:factory, or huggingface (a local folder: "
    "--model-option folder=FOLDER).",
    metavar="MODEL",
)
ModelOptions = Annotated[
    list[str],
    typer.Option(
        "--model-option",
        metavar="KEY=VALUE",
        help="Argument of the model's factory, such as batch_size=16; size=published for a zoo "
        "model as in its paper. Repeatable.",
    ),
]
SameModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="Model of PLACEMENT, package.module:factory; required only for models of your own.",
    ),
]
Out = typer.Option("--out", "-o", metavar="PATH", help="File or folder to write.")
RunFolder = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FOLDER", help="Folder for all results."),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out, if any.")]
Seed = Annotated[
    int, typer.Option(min=0, metavar="N", help="Seed of weights, sample order and search.")
]
CostProfile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Costs of operators: a profile.json, or a table (.csv)."),
]
Minibatches = Annotated[
    int | None,
    typer.Option(min=1, max=100_000, metavar="N", help="Number of minibatches."),
]
Data = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Training data: digits, or package.module:factory, which returns samples or loaders.",
    ),
]
MethodOptions = Annotated[
    list[str],
    typer.Option(
        "--method-option",
        metavar="KEY=VALUE",
        help=f"schedule ({', '.join(training_kinds())}), microbatches (parts of a minibatch), "
        "accumulate (minibatches per update), in_flight_per_link (beyond NOAM), recompute, "
        "precision (float32, bfloat16, float16), loss_scale, clip_norm, "
        "annealing_minibatches and correction_decay (PipeMare's T1 and T2). Repeatable.",
    ),
]
Policies = f"{policy_help()}."
Compare = Annotated[
    list[str],
    typer.Option(
        metavar="LAYOUT",
        help="Layout of yours to compare with: a placement.json, or the modules at which stages "
        "begin, modules:layers.4,head. Repeatable.",
    ),
]


def read_options(options: Sequence[str], what: str, example: str) -> dict[str, object]:
    """Return values by name; a value is written as in YAML.

    Args:
        options: each of the form KEY=VALUE.
        what: takes the options, for the error message.
        example: of an option, for the error message too.

    Raises:
        InvalidInput: if an option is of another form, or has no value.
    """
    values = {}
    for option in options:
        key, _, text = option.partition("=")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = None
        if not key or value is None:
            raise InvalidInput(f"{what} option {option!r}: expected KEY=VALUE, like {example}")
        values[key] = value
    return values


def read_words(text: str, what: str, example: str) -> tuple[str, dict[str, object]]:
    """Return the name and the options of ``NAME KEY=VALUE …``.

    Raises:
        InvalidInput: it is of another form.
    """
    name, *options = shlex.split(text) or [""]
    if not name or "=" in name:
        raise InvalidInput(f"{what} {text!r}: expected NAME KEY=VALUE …, like {example}")
    return name, read_options(options, what, example.partition(" ")[2])


def model_reference(name: str, options: Sequence[str]) -> ModelReference:
    """Return a model as named on the command line.

    Raises:
        InvalidInput: if an option is not of the form KEY=VALUE.
    """
    # It imports torch, for which neither --help nor completion should wait.
    from drlpp.models.model_reference import ModelReference

    arguments: dict[str, Option] = {}
    for key, value in read_options(options, "model", "batch_size=16").items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidInput(f"model option {key}={value}: expected a number or a word")
        arguments[key] = value
    size = "small" if ":" in name else str(arguments.pop("size", "small"))
    if size not in ("small", "published"):
        raise InvalidInput(f"model option size={size}: expected small or published")
    return ModelReference.named(name, size, **arguments)


def same_model(name: str | None, options: Sequence[str]) -> ModelReference | str | None:
    """Return the model of a file as it is named again: by its name alone, or with options.

    Raises:
        InvalidInput: options without a name, or one that is not of the form KEY=VALUE.
    """
    if not options:
        return name
    if name is None:
        raise InvalidInput("--model-option needs the model's name as well: --model")
    return model_reference(name, options)


@dataclass(frozen=True)
class MethodSettings:
    """How a placement runs: weight policy, schedule, microbatches."""

    policy: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help=f"{Policies} Default: pipeoptim, or the placement's.",
            show_default=False,
        ),
    ] = None
    method_option: MethodOptions = field(default_factory=list)

    @property
    def options(self) -> dict[str, object]:
        """Options of the method by name."""
        return read_options(self.method_option, "method", "accumulate=4")

    def method(self, base: Method | None = None) -> Method:
        """Return the method that is asked for, or ``base`` with what is.

        Raises:
            InvalidInput: there is no such policy or option, or they do not fit together.
        """
        return choose_method(self.policy, self.options, base)


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer, its options, and those of groups of parameters."""

    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Optimizer of torch.optim in lower case, or package.module:Class. Default: adam, "
            "or the placement's.",
            show_default=False,
        ),
    ] = None
    lr: Annotated[float | None, typer.Option(metavar="RATE", help="Learning rate.")] = None
    optimizer_option: Annotated[
        list[str],
        typer.Option(
            metavar="KEY=VALUE",
            help="Argument of the optimizer: weight_decay=0.1, betas=[0.9,0.99]. Repeatable.",
        ),
    ] = field(default_factory=list)
    parameter_group: Annotated[
        list[str],
        typer.Option(
            metavar="GROUP",
            help="Parameters with options of their own, '*.bias *norm*: weight_decay=0', or "
            "another optimizer, '*.weight: optimizer=muon lr=0.02'; the first match counts. "
            "Repeatable.",
        ),
    ] = field(default_factory=list)

    def spec(self, base: OptimizerSpec | None = None) -> OptimizerSpec:
        """Return the optimizer that is asked for, or ``base`` with what is.

        Raises:
            InvalidInput: there is no such optimizer or option, or it cannot work here.
        """
        from drlpp.specs.optimizer_spec import OptimizerSpec

        options = read_options(self.optimizer_option, "optimizer", "weight_decay=0.1")
        if self.lr is not None and "lr" in options:
            raise InvalidInput(f"the learning rate is given twice: {self.lr:g} and {options['lr']}")
        if self.lr is not None:
            options["lr"] = self.lr
        groups = [_group(text) for text in self.parameter_group]
        if base is None:
            return OptimizerSpec.parse(self.optimizer or "adam", groups, **options)
        return base.changed(self.optimizer, options, groups)


def _group(text: str) -> ParameterGroup:
    """Return a group of parameters as given: ``PATTERN …: KEY=VALUE …``.

    Raises:
        InvalidInput: it is of another form.
    """
    from drlpp.specs.optimizer_spec import ParameterGroup

    patterns, colon, options = text.partition(":")
    given = read_options(options.split(), "parameter group", "weight_decay=0")
    if not colon or not given:
        raise InvalidInput(
            f"parameter group {text!r}: expected 'PATTERN …: KEY=VALUE …', such as "
            "'*.bias *norm*: weight_decay=0'"
        )
    optimizer = given.pop("optimizer", None)
    name = None if optimizer is None else str(optimizer)
    return ParameterGroup.parse(*patterns.split(), optimizer=name, **given)


Workers = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Number of workers, each one accelerator.", show_default=False
    ),
]
Speeds = Annotated[
    str | None,
    typer.Option(
        metavar="LIST",
        help="Relative speeds of the accelerators, such as 1,1,0.5,0.5; workers emulate them.",
    ),
]
RayCluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="CLUSTER",
        help="Ray cluster that the workers run on, instead of this machine: auto, HOST:PORT of its "
        "head, ray://HOST:PORT, or a cluster.yaml with the hosts of it to use.",
    ),
]


class Emulation(NamedTuple):
    """Workers of a command, and the speeds that they emulate, None without any."""

    workers: int
    speeds: tuple[float, ...] | None


@dataclass(frozen=True)
class WorkerSettings:
    """The processes that compute, and where they run."""

    workers: Workers = None
    speeds: Speeds = None
    device: Annotated[
        DeviceChoice,
        typer.Option(help="What workers compute on; auto: GPUs if there are any."),
    ] = DeviceChoice.AUTO
    cluster: RayCluster = None
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            callback=checked_timeout,
            help="Treat a worker as hung after this many seconds without a message. Default: 120 "
            "at first, then from the longest silence so far.",
            show_default=False,
        ),
    ] = None

    @property
    def address(self) -> str | None:
        """Address of the Ray cluster, None for this machine."""
        return "auto" if self._is_file else self.cluster

    @property
    def _is_file(self) -> bool:
        return self.cluster is not None and self.cluster.endswith(CLUSTER_FILES)

    def hosts(self, folder: Path | None = None) -> Cluster | None:
        """Return the hosts that are wanted, None for any.

        A run that is resumed on a Ray cluster wants those that it has measured, so that
        accelerators keep their numbers.

        Raises:
            InvalidInput: the file cannot be read.
        """
        from drlpp.io.documents import read_document
        from drlpp.specs.cluster import Cluster

        if self.cluster is not None and self._is_file:
            return read_document(self.cluster, Cluster)
        known = None if folder is None else folder / "cluster.yaml"
        if known is not None and self.cluster is not None and known.exists():
            return read_document(known, Cluster)
        return None

    def emulation(self, hosts: Cluster | None, on_this_machine: int | None = None) -> Emulation:
        """Return the number of workers, and the speeds that they emulate.

        Args:
            hosts: that are wanted.
            on_this_machine: the default number.

        Raises:
            InvalidInput: what is given does not go together, or does not exist.
        """
        from drlpp.runtime import default_num_workers

        if emulated := self.emulated:
            return Emulation(len(emulated), emulated)
        usual: dict[str, Any] = {}
        if on_this_machine is not None:
            usual["on_this_machine"] = on_this_machine
        gpus = self.device is not DeviceChoice.CPU
        workers = self.workers or default_num_workers(
            cluster=self.address, hosts=hosts, gpus=gpus, **usual
        )
        return Emulation(workers, None)

    @cached_property
    def emulated(self) -> tuple[float, ...] | None:
        """Speeds that workers emulate, as fast as this machine can; None without any.

        Raises:
            InvalidInput: these are no numbers, not those of the workers, or cannot be emulated.
        """
        if self.speeds is None:
            return None
        from drlpp.runtime.device.emulation import available_cores, fitting_speeds

        relative = read_speeds(self.speeds)
        if not all(0 < speed < math.inf for speed in relative):
            raise InvalidInput(
                f"--speeds {self.speeds}: expected numbers above 0, such as 1,1,0.5,0.5"
            )
        if self.workers not in (None, len(relative)):
            raise InvalidInput(
                f"--speeds {self.speeds} has {len(relative)} numbers for {self.workers} workers"
            )
        return fitting_speeds(relative, available_cores())

    def of_session(self, hosts: Cluster | None) -> dict[str, Any]:
        """Return the arguments of a session, but for the number of workers and their speeds."""
        return {
            "device": self.device,
            "cluster": self.address,
            "hosts": hosts,
            "timeout_seconds": self.timeout,
        }


def read_speeds(text: str) -> tuple[float, ...]:
    """Return relative speeds, separated by commas in ``text``.

    Raises:
        InvalidCluster: for anything else.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidCluster(
            f"speeds {text!r}: expected numbers separated by commas, such as 1,1,0.5,0.5"
        ) from None


@dataclass(frozen=True)
class SearchSettings:
    """What a planner or an agent may choose, and what it is compared with."""

    vary: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="What the search may choose besides the placement, of depth, microbatches, "
            "recompute, schedule; or none. Default: depth, where the schedule has one.",
            show_default=False,
        ),
    ] = None
    max_staleness: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Largest staleness of a stage.", show_default=False),
    ] = None
    cut_at: Annotated[
        CutAt,
        typer.Option(
            help="What stages may divide: operators; modules, or layers of a decoder, for programs "
            "that divide lists of them (drlpp export); or blocks that the model repeats.",
        ),
    ] = CutAt.OPERATORS
    compare: Compare = field(default_factory=list)

    def varied(self, method: MethodSettings) -> frozenset[Vary] | None:
        """Return what may vary, None for the usual; a depth that is given does not.

        Raises:
            InvalidInput: it is something else.
        """
        from drlpp.planners import read_vary

        if self.vary is not None:
            return read_vary(self.vary)
        return frozenset() if "in_flight_per_link" in method.options else None

    def space(self, chosen: Method, method: MethodSettings, batch_size: int | None = None) -> Space:
        """Return the space of candidates.

        Raises:
            InvalidInput: something cannot vary.
        """
        from drlpp.planners import Space

        return Space(chosen, self.varied(method), self.max_staleness, batch_size)


@dataclass(frozen=True)
class RaceSettings:
    """The data of a race to a loss, and what decides it."""

    data: Data = None
    target_loss: Annotated[
        float | None,
        typer.Option(
            metavar="LOSS", help="Held-out loss that the race is run to.", show_default=False
        ),
    ] = None
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Without a target: race to the loss of plain PyTorch after N epochs. Default: 3.",
            show_default=False,
        ),
    ] = None
    limit: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            metavar="SECONDS",
            help="Stop every candidate after this many seconds of training (default: 600, or 5× "
            "plain PyTorch).",
            show_default=False,
        ),
    ] = None

    def options(self, rates: int = 3, finals: int = 3) -> RaceOptions:
        """Return the options of a race."""
        from drlpp.racing.to_loss import RaceOptions

        return RaceOptions(
            self.target_loss,
            self.epochs or 3,
            rates=rates,
            finals=finals,
            limit_seconds=self.limit,
        )
