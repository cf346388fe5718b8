"""``drlpp schema``: the JSON Schema of every kind of file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from drlpp.cli.command_line import build_console
from drlpp.errors import InvalidInput

"""What this machine remembers of its user; nobody else writes it."""


def print_schema(
    kind: Annotated[str | None, typer.Argument(help="Of a file, such as placement.")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder to write all of them into, a file for each."),
    ] = None,
) -> None:
    """Print the JSON Schema of a kind of file, or list the kinds."""
    from drlpp.io.documents import write_atomically

    schemas = all_schemas()
    if kind is not None and kind not in schemas:
        raise InvalidInput(f"there are no files of the kind {kind!r}; there are {_list(schemas)}")
    if output is not None:
        for name in [kind] if kind else schemas:
            path = output / file_name(name)
            write_atomically(path, text_of(schemas[name]).encode())
        build_console().print(f"written to {output}")
    elif kind is not None:
        print(text_of(schemas[kind]), end="")
    else:
        build_console().print(f"kinds of files: {_list(schemas)}")


def all_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas by the kind of file; of ``measurements`` that of every line."""
    # Kinds are known once they are imported.
    import drlpp.agents.hyperparameters
    import drlpp.cli.showing.tables
    import drlpp.runtime.training.checkpoints.checkpoint_store
    import drlpp.runtime.training.checkpoints.evaluation_file  # noqa: F401
    from drlpp.envs.measuring.episode_state import EpisodeState  # noqa: F401
    from drlpp.io.documents import document_kinds
    from drlpp.io.schemas import schema_of, schema_of_lines
    from drlpp.placement.measurements_file import Entry, Header

    found = {
        kind: schema_of(document)
        for kind, document in document_kinds().items()
        if document.__module__.startswith("drlpp.")
    }
    found["measurements"] = schema_of_lines("a line of measurements.jsonl", Header, Entry)
    return dict(sorted(found.items()))


def file_name(kind: str) -> str:
    """Return the name of the file that holds the schema of a kind."""
    return f"{kind.replace(' ', '-')}.schema.json"


def text_of(schema: dict[str, Any]) -> str:
    """Return a schema as it stands in its file."""
    return json.dumps(schema, indent=1, ensure_ascii=False) + "\n"


def _list(schemas: dict[str, dict[str, Any]]) -> str:
    return ", ".join(schemas)
