"""What the command-line programs share: options of a model, and how errors are shown."""

from __future__ import annotations

import atexit
import gc
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
import yaml
from rich.console import Console

from drlpp.cli.common_options import is_quiet
from drlpp.cli.entry import INTERRUPTED
from drlpp.cli.program_console import ProgramConsole, wrapped
from drlpp.errors import DRLPPError, HostLost, InvalidInput, ModelNote, RunFailure
from drlpp.exporting.layouts.cut_at import CutAt
from drlpp.io.progress_lines import ProgressLines, said_while_it_lasts
from drlpp.runtime.ipc.time_limits import checked_timeout
from drlpp.schedule.kinds.registry import training_kinds
from drlpp.schedule.weight_policies import policy_help
from drlpp.specs.device_choice import DeviceChoice

if TYPE_CHECKING:
    from drlpp.models.model_reference import ModelReference
    from drlpp.models.task import Option
    from drlpp.specs.cluster import Cluster
    from drlpp.specs.optimizer_spec import ParameterGroup


class Size(StrEnum):
    """Sizes of the zoo's models."""

    SMALL = "small"
    PUBLISHED = "published"


AcceleratorsOption = Annotated[
    int | None, typer.Option(min=1, help="How many, instead of a cluster.yaml.")
]
BandwidthOption = Annotated[
    float | None, typer.Option(help="Of the links between them, in bytes per second.")
]
LatencyOption = Annotated[
    float | None, typer.Option(help="Of these links, in seconds; 0 by default.")
]
SizeOption = Annotated[
    Size,
    typer.Option(
        help="Of a model of the zoo: small trains well on CPU workers, published is the paper's."
    ),
]
DeviceOption = Annotated[
    DeviceChoice,
    typer.Option(help="What workers compute on; auto takes GPUs where there are any."),
]
TimeoutOption = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        callback=checked_timeout,
        help="Without a word from any worker, after which it counts as hung; else 120 at first, "
        "then by the longest silence so far.",
    ),
]
SpeedsOption = Annotated[
    str | None,
    typer.Option(
        help="Emulate accelerators of these relative speeds, such as 1,1,0.5,0.5, a worker each: "
        "workers compute for a part of the time and sleep for the rest.",
    ),
]
ClusterOption = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="A Ray cluster whose hosts the workers run on, instead of this machine: auto for the "
        "one that it belongs to, HOST:PORT of its head, or ray://HOST:PORT.",
    ),
]
HostsOption = Annotated[
    Path | None,
    typer.Option(
        "--hosts",
        metavar="FILE",
        help="A cluster.yaml with the hosts of it that are wanted; else all, or the first that "
        "have --workers accelerators.",
    ),
]
MODEL_HELP = (
    "A name in the zoo, package.module:factory, or huggingface (a local folder: "
    "--model-option folder=FOLDER)."
)
ModelOptions = Annotated[
    list[str],
    typer.Option(
        "--model-option",
        metavar="KEY=VALUE",
        help="Argument of the model's factory, such as batch_size=16; may be repeated.",
    ),
]
OptimizerOptions = Annotated[
    list[str],
    typer.Option(
        "--optimizer-option",
        metavar="KEY=VALUE",
        help="Argument of the optimizer, such as weight_decay=0.1 or betas=[0.9,0.99]; may be "
        "repeated.",
    ),
]
GroupOptions = Annotated[
    list[str],
    typer.Option(
        "--parameter-group",
        metavar="'PATTERN …: KEY=VALUE …'",
        help="Parameters with options of their own, '*.bias *norm*: weight_decay=0', or another "
        "optimizer, '*.weight: optimizer=muon lr=0.02'; the first that matches counts; may be "
        "repeated.",
    ),
]
SameModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="NAME",
        help="The model that PLACEMENT is for, package.module:factory; only models of your own "
        "have to be named again.",
    ),
]
OPTIMIZER_HELP = "Any of torch.optim by its name in lower case, or package.module:Class"


POLICY_HELP = policy_help()
CutAtOption = Annotated[
    CutAt,
    typer.Option(
        help="What stages may divide: modules of the model stay whole, or layers of a decoder, as "
        "programs that divide lists of them need it (drlpp export), or blocks that any model "
        "repeats, which leaves planners and agents less to choose.",
    ),
]

CompareOptions = Annotated[
    list[str],
    typer.Option(
        "--compare",
        metavar="modules:NAME,…",
        help="A layout of yours to compare with: the modules at which stages begin, like "
        "modules:layers.4,head; may be repeated.",
    ),
]

MethodOptions = Annotated[
    list[str],
    typer.Option(
        "--method-option",
        metavar="KEY=VALUE",
        help=f"schedule ({', '.join(training_kinds())}), microbatches (parts of a minibatch), "
        "accumulate (minibatches of an update: as many times fewer updates), "
        "in_flight_per_link (beyond NOAM), recompute, precision (float32, bfloat16, float16), "
        "loss_scale (float16), clip_norm, stage_momentum (that earlier stages go towards), "
        "annealing_minibatches (PipeMare's T1), correction_decay (T2); may be repeated.",
    ),
]


def build_console() -> Console:
    """Make the console of a program.

    It is as wide as the terminal, and wide enough for tables elsewhere.

    Text is text: what looks like rich's markup may stand in a file.
    """
    width = None if sys.stdout.isatty() else 110
    return ProgramConsole(width=width, markup=False, emoji=False)


@contextmanager
def shown(console: Console, what: str) -> Iterator[Callable[[str], None]]:
    """Show what the block does, and what it says by the function that it is lent.

    On a terminal that is one line that changes; elsewhere lines, no two within a few seconds.
    """
    if console.is_terminal:
        with console.status(what) as status:
            yield status.update
        return
    lines = ProgressLines(lambda line: console.print(line, soft_wrap=True))
    lines(what)
    yield lines
    lines.close()


def said_if_long(what: str) -> AbstractContextManager[None]:
    """Say on standard error what the block does while it lasts, where there is no terminal."""
    if sys.stdout.isatty() or is_quiet():
        return nullcontext()
    return said_while_it_lasts(partial(print, file=sys.stderr, flush=True), what)


def model_reference(name: str, size: Size, options: Sequence[str]) -> ModelReference:
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
    return model_reference(name, Size.SMALL, options)


def optimizer_options(options: Sequence[str], lr: float | None) -> dict[str, object]:
    """Return an optimizer's options as given, the learning rate among them.

    Raises:
        InvalidInput: if an option is not of the form KEY=VALUE.
    """
    given = read_options(options, "optimizer", "weight_decay=0.1")
    if lr is not None and "lr" in given:
        raise InvalidInput(f"the learning rate is given twice: {lr:g} and {given['lr']}")
    return given if lr is None else {**given, "lr": lr}


def parameter_groups(groups: Sequence[str]) -> list[ParameterGroup]:
    """Return groups of parameters as given, each of the form ``PATTERN …: KEY=VALUE …``.

    Raises:
        InvalidInput: if one is of another form.
    """
    from drlpp.specs.optimizer_spec import ParameterGroup

    found = []
    for group in groups:
        patterns, colon, options = group.partition(":")
        given = read_options(options.split(), "parameter group", "weight_decay=0")
        if not colon or not given:
            raise InvalidInput(
                f"parameter group {group!r}: expected 'PATTERN …: KEY=VALUE …', such as "
                "'*.bias *norm*: weight_decay=0'"
            )
        optimizer = given.pop("optimizer", None)
        name = None if optimizer is None else str(optimizer)
        found.append(ParameterGroup.parse(*patterns.split(), optimizer=name, **given))
    return found


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


def read_hosts(path: Path | None) -> Cluster | None:
    """Return the hosts that a ``cluster.yaml`` describes, None if there is none.

    Raises:
        InvalidInput: it cannot be read.
    """
    from drlpp.io.documents import read_document
    from drlpp.specs.cluster import Cluster

    return None if path is None else read_document(path, Cluster)


@contextmanager
def resume_hint_on_interrupt(how: str) -> Iterator[None]:
    """Print ``how`` after Ctrl-C in the block; it tells how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        print(how, file=sys.stderr)
        raise


@contextmanager
def resumable(what: str) -> Iterator[None]:
    """Say that ``--resume`` continues a run after Ctrl-C, or after the loss of a host."""
    how = f"the same command with --resume continues the {what}"
    with resume_hint_on_interrupt(how):
        try:
            yield
        except HostLost as lost:
            message = f"{lost}; all that was measured is kept: when the host is back, {how}"
            raise type(lost)(message, lost.workers) from lost


def run_program(program: Callable[[], object], name: str) -> NoReturn:
    """Run a command line and end with it; errors that we foresee are one line.

    The exit code says which kind: 2 for what the user gave, 1 for what happened while running, 130
    for Ctrl-C.
    """
    # At its end Python would look for cycles among all that torch has, for up to a second.
    atexit.register(gc.freeze)
    warnings.showwarning = _printing_notes(warnings.showwarning)
    code = 0
    try:
        program()
    except SystemExit as ended:
        # That of typer, which makes one of Ctrl-C too.
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except InvalidInput as error:
        code = _tell(name, error, 2)
    except RunFailure as error:
        code = _tell(name, error, 1)
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED:
        print(f"{name}: interrupted", file=sys.stderr)
    sys.exit(code)


def _printing_notes(show: Callable[..., None]) -> Callable[..., None]:
    """Print notes about the model as notes, and other warnings as Python does."""

    def showwarning(
        message: Warning | str, category: type[Warning], *place: Any, **options: Any
    ) -> None:
        if issubclass(category, ModelNote):
            print(f"note: {message}", file=sys.stderr)
        else:
            show(message, category, *place, **options)

    return showwarning


def _tell(name: str, error: DRLPPError, code: int) -> int:
    text = f"{name}: error: {error}"
    if sys.stderr.isatty():
        text = wrapped(text, shutil.get_terminal_size().columns)
    print(text, file=sys.stderr)
    return code
