"""What the command-line programs share: options of a model, and how errors are told."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated

import typer
import yaml
from rich.console import Console

from drlpp.errors import DRLPPError, InvalidInput, RunFailure
from drlpp.task import ModelReference, Option


class Size(StrEnum):
    """Sizes of the zoo's models."""

    SMALL = "small"
    PUBLISHED = "published"


SizeOption = Annotated[
    Size,
    typer.Option(
        help="Of a model of the zoo: small trains well on CPU workers, published is the paper's."
    ),
]
ModelOptions = Annotated[
    list[str],
    typer.Option(
        "--model-option",
        metavar="KEY=VALUE",
        help="Argument of the model's factory, such as batch_size=16; may be repeated.",
    ),
]


def build_console() -> Console:
    """Where a program prints: as wide as the terminal, and wide enough for tables elsewhere."""
    return Console(width=None if sys.stdout.isatty() else 110)


def model_reference(name: str, size: Size, options: Sequence[str]) -> ModelReference:
    """A model as named on the command line.

    Raises:
        InvalidInput: if an option is not of the form KEY=VALUE.
    """
    arguments: dict[str, Option] = {}
    for option in options:
        key, separator, text = option.partition("=")
        value = yaml.safe_load(text) if separator else None
        if not isinstance(value, bool | int | float | str):
            raise InvalidInput(f"model option {option!r}: expected KEY=VALUE, like batch_size=16")
        arguments[key] = value
    return ModelReference.named(name, size, **arguments)


def run_program(program: Callable[[], object], name: str) -> None:
    """Run a command line; errors that we foresee are one line, and the exit code says which kind.

    Exit code 2 for what the user gave, 1 for what happened while running, 130 for Ctrl-C.
    """
    try:
        program()
    except InvalidInput as error:
        sys.exit(_tell(name, error, 2))
    except RunFailure as error:
        sys.exit(_tell(name, error, 1))
    except KeyboardInterrupt:
        sys.exit(130)


def _tell(name: str, error: DRLPPError, code: int) -> int:
    print(f"{name}: error: {error}", file=sys.stderr)
    return code
