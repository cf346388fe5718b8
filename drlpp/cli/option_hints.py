"""What an option that a command does not have is called there, or who has it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import typer
from typer.core import TyperCommand

from drlpp.near_names import near_name
from drlpp.schedule.method import Method

_SAME = (
    ("workers", "accelerators", "gpus", "devices", "num-workers", "nproc-per-node", "world-size"),
    ("out", "output", "output-dir", "folder"),
    ("epochs", "num-epochs", "num-train-epochs"),
    ("minibatches", "steps", "iterations", "max-steps"),
    ("lr", "learning-rate", "optimizer-option lr=…"),
    ("data", "dataset", "train-data"),
    ("lr-schedule", "scheduler", "lr-scheduler"),
    ("early-stopping", "patience"),
    ("checkpoints", "checkpoint-dir", "checkpoint-folder"),
    ("device", "accelerator"),
    ("max-staleness", "staleness"),
    ("size", "model-size"),
    ("timeout", "time-limit"),
    ("resume", "continue"),
    ("model-option batch_size=…", "batch-size", "per-device-train-batch-size"),
    ("optimizer-option weight_decay=…", "weight-decay"),
    ("optimizer-option momentum=…", "momentum"),
    ("optimizer-option betas=…", "betas"),
    ("method-option microbatches=…", "chunks", "num-microbatches", "gradient-microbatches"),
    ("method-option accumulate=…", "gradient-accumulation-steps", "accumulation-steps"),
    ("method-option precision=…", "dtype"),
    ("method-option clip_norm=…", "max-grad-norm", "grad-clip", "gradient-clipping"),
)
"""Names of the same thing, in our commands and in programs that users know; with a blank, a key of
an option that takes KEY=VALUE."""


class HintingCommand(TyperCommand):
    """A command that says of an option which it does not have what it may be called."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line.

        Raises:
            UsageError: typer's, as it is, or with a hint if there is no such option.
        """
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            name = getattr(error, "option_name", None)
            if not hasattr(error, "possibilities") or name is None:
                raise
            described: Any = error
            described.possibilities = None
            described.message = f"No such option: {name}{hint(name, ctx)}"
            raise


# typer brings a click of its own, or takes the one that is installed.
_UsageError: Any = typer.BadParameter.__base__


def meant(word: str, own: Collection[str]) -> str | None:
    """Return what a command calls a thing of which a user wrote another name, or a misspelt one.

    Args:
        word: the name, without dashes before it.
        own: names of the command's options, likewise.

    Returns:
        A name of an option, with a blank and a key behind it if it takes KEY=VALUE, or None.
    """
    called = _called(own)
    near = near_name(word, called)
    return None if near is None else called[near]


def _called(own: Collection[str]) -> dict[str, str]:
    """Return what a command calls what users may call so."""
    called = {option: option for option in own}
    if "method-option" in own:
        keys = [key for key in Method.model_fields if key != "policy"]
        called |= {key.replace("_", "-"): f"method-option {key}=…" for key in keys} | called
    for names in _SAME:
        usable = [name for name in names if _is_one_of(name, own)]
        if usable:
            called |= dict.fromkeys(names, usable[0]) | called
    return called


def hint(name: str, context: typer.Context) -> str:
    """Return what to write instead of an option, as the end of a sentence.

    Args:
        name: of the option, with its dashes.
        context: of the command that does not have it.
    """
    word = name.lstrip("-").replace("_", "-")
    for parameter in context.command.params:
        if parameter.param_type_name == "argument" and parameter.name == word:
            return f"; write {context.command_path} {word.upper()}, without --{word}"
    own = _options_of(context.command)
    if exact := _called(own).get(word):
        return f"; did you mean --{exact}?"
    # A misspelt option of this command is likelier than another name of other commands' options.
    near = near_name(word, own)
    same = (option for names in _SAME if near is None and word in names for option in names)
    for option in (word, *same):
        if commands := [other for other, has in _others(context) if _is_one_of(option, has)]:
            return f"; {_list(commands)} {'has' if len(commands) == 1 else 'have'} --{option}"
    if near := meant(word, own):
        return f"; did you mean --{near}?"
    return f"; {context.command_path} --help lists the options"


def _is_one_of(option: str, own: Collection[str]) -> bool:
    return option.partition(" ")[0] in own


def _options_of(command: Any) -> set[str]:
    """Return the options of a command, without dashes."""
    return {
        name.lstrip("-")
        for parameter in command.params
        if parameter.param_type_name == "option" and not parameter.hidden
        for name in parameter.opts
        if name.startswith("--")
    }


def _others(context: Any) -> Iterator[tuple[str, set[str]]]:
    """Yield the other commands of the program, each with its options."""
    if context.parent is not None:
        for name, command in getattr(context.parent.command, "commands", {}).items():
            yield f"{context.parent.command_path} {name}", _options_of(command)


def _list(names: Iterable[str]) -> str:
    first, *others = names
    short = [first, *(name.rpartition(" ")[2] for name in others)]
    return short[0] if not others else f"{', '.join(short[:-1])} and {short[-1]}"
