"""JSON Schemas of the files, for programs that write or check them without this one."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, TypeAdapter

from drlpp.io.documents import Document

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema_of(document: type[Document]) -> dict[str, Any]:
    """Return the JSON Schema of a kind of document, as a mapping.

    It says what has to be there and of which type. What a schema cannot say, such as that every
    operator is in one stage, is checked where the file is read.
    """
    schema = document.model_json_schema()
    properties = {
        "kind": {"const": document.kind},
        "version": {"type": "integer", "minimum": 1, "maximum": document.current_version},
        **schema["properties"],
    }
    return {
        "$schema": _DIALECT,
        **schema,
        "title": document.kind,
        "properties": properties,
        "required": ["kind", "version", *schema.get("required", [])],
        "additionalProperties": False,
    }


def schema_of_lines(title: str, *kinds: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON Schema of every line of a file in which each line is one of ``kinds``."""
    lines: TypeAdapter[Any] = TypeAdapter(_union(kinds))
    return {"$schema": _DIALECT, "title": title, **lines.json_schema()}


def _union(kinds: tuple[type[BaseModel], ...]) -> Any:
    first, *others = kinds
    union: Any = first
    for kind in others:
        union |= kind
    return union
