"""How a dataclass of options (``arguments.py``) becomes a command, and what every command takes.

Every command takes ``--config``, a YAML file with options by their names, such as the ``run.yaml``
that :func:`keep_options` writes.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext, redirect_stdout
from contextvars import ContextVar
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
import yaml
from typer.core import TyperCommand

from drlpp.errors import InvalidInput, did_you_mean
from drlpp.io.run_folder import OPTIONS_NAME

_NOT_KEPT = {"out", "resume"}

_given: ContextVar[Mapping[str, Any]] = ContextVar("given", default={})  # noqa: B039 - not changed

_CONFIG = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="YAML file with options, such as a run's run.yaml; the command line takes precedence.",
    ),
]
_JSON = Annotated[
    bool, typer.Option("--json", help="Print JSON to standard output, the rest to standard error.")
]


def program(**options: Any) -> typer.Typer:
    """Make a program without commands."""
    return typer.Typer(pretty_exceptions_enable=False, rich_markup_mode=None, **options)


def add_command(app: typer.Typer, name: str | None, settings: Any, run: str) -> None:
    """Add a command to a program.

    Args:
        app: the program.
        name: of the command.
        settings: a dataclass, whose docstring is the command's help. A field of it is an option, or
            a section of options, which is a dataclass as well.
        run: ``module:function``, imported when the command runs. It is called with the settings,
            and what it returns is printed by ``--json``.
    """
    parameters = [
        *_options_of(settings),
        _option("config", _CONFIG, None),
        _option("as_json", _JSON, False),
    ]
    defaults = {parameter.name: parameter.default for parameter in parameters}

    def command(**values: Any) -> None:
        values.pop("config")
        machine = values.pop("as_json")
        _given.set({k: v for k, v in values.items() if k not in _NOT_KEPT and v != defaults[k]})
        module, _, function = run.partition(":")
        with redirect_stdout(sys.stderr) if machine else nullcontext():
            record = getattr(import_module(module), function)(_read(settings, values))
        if machine:
            print(json.dumps(record, indent=2, ensure_ascii=False))

    described: Any = command
    described.__signature__ = inspect.Signature(parameters)
    described.__annotations__ = {found.name: found.annotation for found in parameters}
    described.__doc__ = settings.__doc__
    app.command(name, cls=_Command, context_settings={"max_content_width": 100})(command)


def _options_of(settings: Any) -> Iterator[inspect.Parameter]:
    """Yield the options of a dataclass, and of its sections."""
    hints = get_type_hints(settings, include_extras=True)
    for field in dataclasses.fields(settings):
        kind, made = hints[field.name], field.default_factory
        if dataclasses.is_dataclass(kind):
            yield from _options_of(kind)
        else:
            if shown := field.metadata.get("option"):
                kind = Annotated[kind, shown]
            default = field.default if made is dataclasses.MISSING else made()
            given = inspect.Parameter.empty if default is dataclasses.MISSING else default
            yield _option(field.name, kind, given)


def _read(settings: Any, values: Mapping[str, Any]) -> Any:
    """Return a dataclass, and its sections, with the values of its options."""
    kinds = get_type_hints(settings)
    return settings(
        **{
            name: _read(kind, values) if dataclasses.is_dataclass(kind) else values[name]
            for name, kind in kinds.items()
        }
    )


def _option(name: str, kind: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)


class _Command(TyperCommand):
    """A command whose options may stand in a file."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the command line; what it leaves out is taken from the file."""
        if not ctx.resilient_parsing:
            given, _, _ = self.make_parser(ctx).parse_args(list(args))
            if given.get("config") and not given.get("help"):
                ctx.default_map = {
                    **(ctx.default_map or {}),
                    **self._from_file(Path(given["config"])),
                }
        return super().parse_args(ctx, args)

    def _from_file(self, file: Path) -> dict[str, Any]:
        """Return the options of a file."""
        from drlpp.io.documents import read_mapping

        known: dict[str, Any] = {
            str(parameter.name).replace("_", "-"): parameter
            for parameter in self.params
            if parameter.name not in ("config", "as_json", "help")
        }
        found: dict[str, Any] = {}
        for key, value in read_mapping(file).items():
            chosen = known.get(str(key).replace("_", "-"))
            if chosen is None:
                there = did_you_mean(str(key), known) or f"there are {', '.join(sorted(known))}"
                raise InvalidInput(f"{file}: {key!r} is no option of this command; {there}")
            if value is not None:
                several = getattr(chosen, "multiple", False)
                if isinstance(value, dict) and not several:
                    own = f"{chosen.name}-option".replace("_", "-")
                    where = f"as {own!r}" if own in known else "at the top level of the file"
                    raise InvalidInput(
                        f"{file}: {key!r} has fields; expected one value, and its options {where}"
                    )
                found[chosen.name] = _as_given(value, several=several)
        return found


def _as_given(value: Any, *, several: bool) -> Any:
    """Return what the command line would have given.

    A mapping stands for several KEY=VALUE, a list for what commas separate there.
    """
    if isinstance(value, dict):
        value = [f"{name}={json.dumps(option)}" for name, option in value.items()]
    if several:
        return value if isinstance(value, list) else [value]
    return ",".join(map(str, value)) if isinstance(value, list) else value


def keep_options(folder: Path) -> None:
    """Write the options of the command that runs into its folder, so that it can be run again."""
    from drlpp.io.files import write_atomically

    content = {name.replace("_", "-"): value for name, value in _given.get().items()}
    # Names of choices and paths are text in JSON.
    plain = json.loads(json.dumps(content, default=str))
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    note = "# The options of this run: the same command with --config THIS_FILE runs it again.\n"
    write_atomically(folder / OPTIONS_NAME, (note + text).encode())
