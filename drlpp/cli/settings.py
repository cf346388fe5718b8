"""Sections of options that several commands take.

Their fields are options, and keys of ``--config`` files; their methods return what Python takes:
:class:`Method`, :class:`OptimizerSpec`, the arguments of :class:`ClusterSession`. All raise
``InvalidInput`` for what does not exist or go together. What needs torch is imported when it is
used, so that neither ``--help`` nor completion waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml

from drlpp.errors import InvalidCluster, InvalidInput
from drlpp.exporting.layouts import CutAt
from drlpp.io.documents import read_document
from drlpp.runtime.ipc.time_limits import time_limits_of
from drlpp.schedule.kinds.registry import training_kinds
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.weight_policies import policy_help
from drlpp.specs.cluster import CLUSTER_FILES, Cluster, DeviceChoice
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup

if TYPE_CHECKING:
    from drlpp.costs.profile import Profile
    from drlpp.models.model_reference import ModelReference
    from drlpp.models.task import Option
    from drlpp.planners import Space, Vary


def shared(help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """Return an option that several commands take, for the type of their fields."""
    return typer.Option(*names, help=help, metavar=metavar, **more)


def option(default: Any, help: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
    """Return a field that is an option; ``...`` as its default if it has to be given."""
    kept = {"option": shared(help, metavar, *names, **more)}
    if default is list:
        return field(default_factory=list, metadata=kept)
    return field(default=MISSING if default is ... else default, metadata=kept)


def count(default: int | None, help: str, least: int = 1, most: int | None = None) -> Any:
    """Return a field that is a whole number."""
    return option(default, help, "N", min=least, max=most)


MODEL = typer.Argument(
    help="Name in the zoo, package.module:factory, huggingface (a local folder: "
    "--model-option folder=FOLDER), or torchvision (--model-option name=NAME).",
    metavar="MODEL",
)
Model = Annotated[str, MODEL]
ModelOptions = Annotated[
    list[str],
    shared(
        "Argument of the model's factory, such as batch_size=16; size=published for a zoo model as "
        "in its paper. Repeatable.",
        "KEY=VALUE",
        "--model-option",
    ),
]
SameModel = Annotated[
    str | None,
    shared(
        "Model of PLACEMENT, package.module:factory; required only for models of your own.",
        "NAME",
        "--model",
    ),
]
OUT = shared("File or folder to write.", "PATH", "--out", "-o")
CostProfile = Annotated[
    Path | None, shared("Costs of operators: a profile.json, or a table (.csv).", "FILE")
]
Data = Annotated[
    str | None,
    shared(
        "Training data: digits, or package.module:factory, which returns samples or loaders.",
        "NAME",
    ),
]
MethodOptions = Annotated[
    list[str],
    shared(
        f"schedule ({', '.join(training_kinds())}), microbatches (parts of a minibatch), "
        "accumulate (minibatches per update), in_flight_per_link (beyond NOAM), recompute, "
        "precision (float32, bfloat16, float16), compiled, loss_scale, clip_norm, "
        "annealing_minibatches and correction_decay (PipeMare's T1 and T2). Repeatable.",
        "KEY=VALUE",
    ),
]
Compare = Annotated[
    list[str],
    shared(
        "Layout of yours to compare with: a placement.json, or the modules at which stages begin, "
        "modules:layers.4,head. Repeatable.",
        "LAYOUT",
    ),
]
Workers = Annotated[int | None, shared("Number of workers, each one accelerator.", "N", min=1)]
Emulated = Annotated[
    str | None,
    shared(
        "Accelerators to emulate on this machine: relative speeds such as 1,1,0.5,0.5, or a "
        "cluster.yaml, whose links are emulated as well.",
        "LIST|FILE",
    ),
]
RayCluster = Annotated[
    str | None,
    shared(
        "Ray cluster that the workers run on, instead of this machine: auto, HOST:PORT of its "
        "head, or a cluster.yaml with the hosts of it to use.",
        "CLUSTER",
        "--cluster",
    ),
]
Seed = Annotated[int, shared("Seed of weights, sample order and search.", "N", min=0)]


@dataclass(frozen=True)
class RunSettings:
    """Where a run's results go, and whether one is continued there."""

    out: Path | None = option(None, "Folder for all results.", "FOLDER", "--out", "-o")
    resume: bool = option(False, "Continue the run in --out, if any.", None, "--resume")
    seed: Seed = 0

    def folder(self, parent: str, model: str) -> Path:
        """Return the folder of a run, by default one with the model's name in ``parent``."""
        return self.out or Path(parent) / model.replace(":", "-").replace("/", "-")


def read_options(options: Sequence[str], what: str, example: str) -> dict[str, object]:
    """Return values by name; a value is written as in YAML.

    Args:
        options: each of the form KEY=VALUE.
        what: takes the options, for the error message.
        example: of an option, for the error message too.
    """
    values = {}
    for given in options:
        key, _, text = given.partition("=")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError:
            value = None
        if not key or value is None:
            raise InvalidInput(f"{what} option {given!r}: expected KEY=VALUE, like {example}")
        values[key] = value
    return values


def read_speeds(text: str | None) -> tuple[float, ...] | None:
    """Return relative speeds, separated by commas in ``text``, if any are given."""
    if text is None:
        return None
    try:
        speeds = tuple(float(part) for part in text.split(","))
    except ValueError:
        speeds = ()
    if not speeds or not all(0 < speed < math.inf for speed in speeds):
        raise InvalidCluster(
            f"--speeds {text}: expected numbers above 0 separated by commas, such as 1,1,0.5,0.5"
        )
    return speeds


def model_reference(name: str, options: Sequence[str]) -> ModelReference:
    """Return a model as named on the command line."""
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
    """Return the model of a file as it is named again: by its name alone, or with options."""
    if not options:
        return name
    if name is None:
        raise InvalidInput("--model-option needs the model's name as well: --model")
    return model_reference(name, options)


@dataclass(frozen=True)
class MethodSettings:
    """How a placement runs: weight policy, schedule, microbatches."""

    policy: str | None = option(
        None, f"{policy_help()}. Default: pipeoptim, or the placement's.", "NAME"
    )
    method_option: MethodOptions = field(default_factory=list)

    @property
    def options(self) -> dict[str, object]:
        """Options of the method by name."""
        return read_options(self.method_option, "method", "accumulate=4")

    def method(self, base: Method | None = None) -> Method:
        """Return the method that is asked for, or ``base`` with what is."""
        return choose_method(self.policy, self.options, base)


@dataclass(frozen=True)
class OptimizerSettings:
    """The optimizer, its options, and those of groups of parameters."""

    optimizer: str | None = option(
        None,
        "Optimizer of torch.optim in lower case, or package.module:Class. Default: adam, or "
        "the placement's.",
        "NAME",
    )
    lr: float | None = option(None, "Learning rate.", "RATE")
    optimizer_option: list[str] = option(
        list,
        "Argument of the optimizer: weight_decay=0.1, betas=[0.9,0.99]. Repeatable.",
        "KEY=VALUE",
    )
    parameter_group: list[str] = option(
        list,
        "Parameters with options of their own, '*.bias *norm*: weight_decay=0'; the first match "
        "counts. Repeatable.",
        "GROUP",
    )

    def spec(self, base: OptimizerSpec | None = None) -> OptimizerSpec:
        """Return the optimizer that is asked for, or ``base`` with what is."""
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
    """Return a group of parameters as given: ``PATTERN …: KEY=VALUE …``."""
    patterns, colon, options = text.partition(":")
    given = read_options(options.split(), "parameter group", "weight_decay=0")
    if not colon or not given:
        raise InvalidInput(
            f"parameter group {text!r}: expected 'PATTERN …: KEY=VALUE …', such as "
            "'*.bias *norm*: weight_decay=0'"
        )
    return ParameterGroup.parse(*patterns.split(), **given)


@dataclass(frozen=True)
class WorkerSettings:
    """The processes that compute, and where they run."""

    workers: Workers = None
    speeds: Emulated = None
    device: DeviceChoice = option(
        DeviceChoice.AUTO, "What workers compute on; auto: GPUs if there are any."
    )
    cluster: RayCluster = None
    timeout: float | None = option(
        None,
        "Treat a worker as hung after this many seconds without a message. Default: 120 at "
        "first, then from the longest silence so far.",
        "SECONDS",
        "--timeout",
        callback=lambda seconds: time_limits_of(None, seconds).answer_seconds,
    )

    @property
    def address(self) -> str | None:
        """Address of the Ray cluster, None for this machine."""
        return "auto" if self._is_file else self.cluster

    @property
    def _is_file(self) -> bool:
        return self.cluster is not None and self.cluster.endswith(CLUSTER_FILES)

    @cached_property
    def links(self) -> Cluster | None:
        """The cluster whose links workers emulate; None without one."""
        if self.speeds is None or not self.speeds.endswith(CLUSTER_FILES):
            return None
        return read_document(Path(self.speeds), Cluster)

    @cached_property
    def emulated(self) -> tuple[float, ...] | None:
        """Speeds that workers emulate, as fast as this machine can; None without any."""
        from drlpp.runtime.device.emulation import available_cores, fitting_speeds

        relative = self.links.speeds if self.links else read_speeds(self.speeds)
        if relative is None:
            return None
        if self.workers not in (None, len(relative)):
            raise InvalidInput(
                f"--speeds {self.speeds} is of {len(relative)} accelerators, for {self.workers} "
                "workers"
            )
        return fitting_speeds(relative, available_cores())

    def of_session(
        self, folder: Path | None = None, on_this_machine: int | None = None
    ) -> dict[str, Any]:
        """Return a session's arguments about its workers.

        Args:
            folder: of a run, which wants the hosts that it has measured if it is resumed on a Ray
                cluster, so that accelerators keep their numbers.
            on_this_machine: the default number of workers, if it is another.
        """
        from drlpp.runtime import default_num_workers

        hosts, workers, emulated = self._hosts(folder), self.workers, self.emulated
        if workers is None and emulated is not None:
            workers = len(emulated)
        elif workers is None and self.cluster is None and on_this_machine is not None:
            workers = on_this_machine
        elif workers is None:
            gpus = self.device is not DeviceChoice.CPU
            workers = default_num_workers(cluster=self.address, hosts=hosts, gpus=gpus)
        return {
            "workers": workers,
            "speeds": emulated,
            "links": self.links,
            "device": self.device,
            "cluster": self.address,
            "hosts": hosts,
            "timeout_seconds": self.timeout,
        }

    def _hosts(self, folder: Path | None) -> Cluster | None:
        """Return the hosts that are wanted, None for any."""
        if self.cluster is None:
            return None
        path = Path(self.cluster) if self._is_file else folder and folder / "cluster.yaml"
        known = path is not None and (self._is_file or path.exists())
        return read_document(path, Cluster) if known and path is not None else None


@dataclass(frozen=True)
class SearchSettings:
    """What a planner or an agent may choose, and what it is compared with."""

    vary: str | None = option(
        None,
        "What the search may choose besides the placement, of depth, microbatches, recompute, "
        "schedule; or none. Default: depth and microbatches; for seconds, depth.",
        "LIST",
    )
    objective: str | None = option(
        None,
        "What the search minimises: loss (default), seconds a minibatch times the samples that "
        "late weights need; seconds (default of agents other than guided); dollars (plan alone).",
        "NAME",
    )
    cut_at: CutAt = option(
        "operators",
        "Where stages may begin: at operators; at modules or decoder layers (drlpp export); "
        "at blocks that the model repeats.",
    )
    compare: Compare = field(default_factory=list)

    def varied(self, method: MethodSettings, kinds: Sequence[str] = ()) -> frozenset[Vary] | None:
        """Return what may vary, None for the usual; an option that is given does not."""
        from drlpp.planners import objective_for, read_vary, usually_varied

        if self.vary is not None:
            return read_vary(self.vary)
        chosen = method.method(Method())
        return usually_varied(chosen, method.options, objective_for(chosen, self.objective), kinds)

    def space(self, chosen: Method, method: MethodSettings, costs: Profile | None = None) -> Space:
        """Return the space of candidates with a method, that of the settings or one made of it."""
        from drlpp.planners import Space

        kinds = () if costs is None else [operator.type for operator in costs.graph.operators]
        batch_size = None if costs is None else costs.batch_size
        return Space(chosen, self.varied(method, kinds), batch_size=batch_size)


@dataclass(frozen=True)
class MeasuringSettings:
    """How much is measured."""

    budget: int = count(100, "Number of placements to measure, at most.")
    minibatches: int = count(30, "Minibatches of a measurement.", most=100_000)
    repetitions: int = count(3, "Runs that these minibatches are divided into.")
    finalists: int = count(4, "Measured placements in the final comparison.")
    rounds: int = count(7, "Rounds of the final comparison, at most.")


@dataclass(frozen=True)
class RaceSettings:
    """The data of a race to a loss, and what decides it."""

    data: Data = None
    target_loss: float | None = option(None, "Held-out loss that the race is run to.", "LOSS")
    epochs: int | None = count(
        None, "Without a target: race to the loss of plain PyTorch after N epochs. Default: 3."
    )
    limit: float | None = option(
        None,
        "Stop every candidate after this many seconds of training (default: 600, or 5× plain "
        "PyTorch).",
        "SECONDS",
        min=0.001,
    )

    @property
    def options(self) -> dict[str, Any]:
        """What :func:`drlpp.racing.to_loss.race_to_loss` is given of them."""
        known = {"target_loss": self.target_loss, "limit_seconds": self.limit}
        return known if self.epochs is None else known | {"epochs": self.epochs}
