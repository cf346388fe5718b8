"""What every command takes: a file with its options, silence, and JSON instead of text."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from drlpp.errors import InvalidInput
from drlpp.io.run_folder import OPTIONS_NAME
from drlpp.near_names import did_you_mean

_NOT_KEPT = {"out", "resume", "config", "quiet", "as_json"}

_MAY_NAME_CODE = {"model", "data", "optimizer", "lr-schedule", "parameter-group"}

_quiet: ContextVar[bool] = ContextVar("quiet", default=False)
_given: ContextVar[Mapping[str, Any]] = ContextVar("given", default={})  # noqa: B039 - not changed


def is_quiet() -> bool:
    """Return whether the command that runs is to print errors only."""
    return _quiet.get()


def add_command(
    app: typer.Typer,
    name: str | None,
    function: Callable[..., object],
    *,
    quiet: bool = False,
    as_json: bool = False,
    by_name: str | None = None,
) -> None:
    """Add a command to a program, which also takes ``--config``, and what is asked for.

    Args:
        app: the program.
        name: of the command.
        function: the command; with ``as_json``, what it returns is printed as JSON.
        quiet: it writes files, and what it prints can be left out, by ``--quiet``; with ``--json``
            that goes to standard error.
        as_json: it gets a ``--json``, and has none of its own.
        by_name: an argument that may also be given as an option of this name.
    """
    command = _with_common_options(function, quiet, as_json, by_name)
    app.command(name)(command)


def _with_common_options(
    function: Callable[..., object], quiet: bool, as_json: bool, by_name: str | None
) -> Callable[..., None]:
    signature = inspect.signature(function, eval_str=True)
    more: dict[str, Any] = {"config": (_CONFIG, None)}
    if by_name is not None:
        option = typer.Option(f"--{by_name}", help=f"The same as {by_name.upper()}.")
        more["named"] = (Annotated[str | None, option], None)
        more["context"] = (typer.Context, inspect.Parameter.empty)
    if quiet:
        more["quiet"] = (_QUIET, False)
    if as_json:
        more["as_json"] = (_JSON, False)

    def command(**values: Any) -> None:
        values.pop("config")
        if by_name is not None:
            _take(values, by_name, values.pop("named"), values.pop("context"))
        silent = values.pop("quiet") if quiet else False
        machine = values.pop("as_json") if as_json else False
        defaults = {name: found.default for name, found in signature.parameters.items()}
        _given.set({k: v for k, v in values.items() if k not in _NOT_KEPT and v != defaults[k]})
        token = _quiet.set(silent)
        try:
            with ExitStack() as stack:
                if silent or (machine and not quiet):
                    nowhere = stack.enter_context(open(os.devnull, "w"))
                    stack.enter_context(contextlib.redirect_stdout(nowhere))
                elif machine:
                    stack.enter_context(contextlib.redirect_stdout(sys.stderr))
                record = function(**values)
        except RefusedWithRecord as refused:
            if machine:
                _print_json(refused.record)
            raise typer.Exit(1) from None
        finally:
            _quiet.reset(token)
        if machine:
            _print_json(record)

    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in more.items()
    ]
    parameters = [*signature.parameters.values(), *options]
    described: Any = command
    described.__signature__ = signature.replace(parameters=parameters)
    described.__annotations__ = {found.name: found.annotation for found in parameters}
    described.__name__, described.__doc__ = function.__name__, function.__doc__
    return command


def _take(values: dict[str, Any], argument: str, named: str | None, context: typer.Context) -> None:
    """Take the value of an option for that of an argument, if it is given.

    Raises:
        InvalidInput: the command line gives both, and they differ.
    """
    if named is None:
        return
    source = context.get_parameter_source(argument)
    if source is not None and source.name == "COMMANDLINE" and values[argument] != named:
        raise InvalidInput(
            f"the {argument} is given twice, {values[argument]} and --{argument} {named}; leave "
            "one of them out"
        )
    values[argument] = named


def _print_json(record: object) -> None:
    print(json.dumps(record, indent=2, ensure_ascii=False))


class RefusedWithRecord(Exception):
    """Ends a command with exit code 1, and has what ``--json`` prints even so."""

    def __init__(self, record: object) -> None:
        super().__init__()
        self.record = record


def keep_options(folder: Path) -> None:
    """Write the options of the command that runs into its folder, so that it can be run again."""
    from drlpp.io.documents import write_atomically

    content = {name.replace("_", "-"): _plain(value) for name, value in _given.get().items()}
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    note = "# The options of this run: the same command with --config THIS_FILE runs it again.\n"
    write_atomically(folder / OPTIONS_NAME, (note + text).encode())


def _plain(value: Any) -> Any:
    match value:
        case Enum():
            return value.value
        case Path():
            return str(value)
        case list() | tuple():
            return [_plain(item) for item in value]
    return value


def _read_options(context: typer.Context, path: Path | None) -> Path | None:
    """Take the options in a file for those that the command line leaves out.

    Without a file they are those of the run that is resumed, if any.
    """
    if context.resilient_parsing:
        return path
    file = _options_of_resumed_run(context) if path is None else path
    if file is None:
        return path
    from drlpp.io.documents import read_mapping

    known: dict[str, Any] = {}
    for parameter in context.command.params:
        if parameter.name not in ("config", "help", None):
            names = {option.lstrip("-") for option in parameter.opts}
            for name in (parameter.name.replace("_", "-"), *names):
                # An argument comes before an option of its name.
                known.setdefault(name, parameter)
    found: dict[str, Any] = {}
    for key, value in read_mapping(file).items():
        chosen = known.get(str(key).replace("_", "-"))
        if path is None and (chosen is None or not _is_resumed(key, value, context)):
            # Options that there are none of are those of another version of drlpp.
            continue
        if chosen is None:
            usual = {p.opts[-1].lstrip("-").replace("_", "-") for p in known.values()}
            options = ", ".join(sorted(usual))
            there = did_you_mean(str(key).replace("_", "-"), known) or f"there are {options}"
            raise InvalidInput(f"{path}: {key!r} is no option of this command; {there}")
        several = getattr(chosen, "multiple", False)
        if value is not None:
            found[chosen.name] = _as_given(value, several=several)
    context.default_map = {**(context.default_map or {}), **found}
    return path


def _options_of_resumed_run(context: typer.Context) -> Path | None:
    """Return the options that ``drlpp train --resume`` continues with, if they are there.

    What decides where they are is eager, as is the option whose callback asks.
    """
    given = context.params
    if not given.get("resume") or "placement" not in given:
        return None
    file = training_folder(given["placement"], given["out"]) / OPTIONS_NAME
    return file if file.is_file() else None


def _is_resumed(option: str, value: object, context: typer.Context) -> bool:
    """Return whether a resumed run's option is taken without being given again.

    No file names code that is imported: its user does, each time.

    Raises:
        InvalidInput: it is data that the user has to name.
    """
    if option == "elastic":
        return not context.params["workers"]
    if option not in _MAY_NAME_CODE or ":" not in str(value):
        return True
    source = context.get_parameter_source(option)
    if option == "data" and source is not None and source.name == "DEFAULT":
        raise InvalidInput(
            f"the run that is resumed has data of your own; name it again: --data {value}"
        )
    return False


def training_folder(placement: Path, out: Path | None) -> Path:
    """Return the folder of a training."""
    return out or placement.parent / "training"


def _as_given(value: Any, *, several: bool) -> Any:
    """Return what the command line would have given.

    A mapping stands for several KEY=VALUE, a list for what commas separate there.
    """
    if isinstance(value, dict):
        value = [f"{name}={json.dumps(option)}" for name, option in value.items()]
    if several:
        return value if isinstance(value, list) else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value


_CONFIG = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        is_eager=True,
        callback=_read_options,
        help="A YAML file with options, such as the run.yaml of a run; what is given here counts "
        "before it.",
    ),
]
_QUIET = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")]
_JSON = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
