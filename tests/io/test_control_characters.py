"""Control characters of files are refused when read, and no terminal ever gets one."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.errors import InvalidFile, InvalidInput
from drlpp.file_content import problem_of_text, visible
from drlpp.io.documents import read_any_document
from tests.endurance.fuzzing.documents import every_document

DANGEROUS = [
    *("\x00", "\x07", "\x1b[2J", "\n", "\r", "\x7f", "\x9b31m"),
    *("\u202e", "\u2066", "\u200b", "\u2028", "\ud800"),
]
Path_ = tuple[str | int, ...]
_MARK = "the value that is tried"


def texts_of(content: Any) -> Iterator[Path_]:
    """Yield where texts stand in a document's content; of like entries in the fullest."""
    if isinstance(content, str):
        yield ()
    elif isinstance(content, dict | list):
        places = content.items() if isinstance(content, dict) else _unlike(content)
        for place, value in places:
            yield from ((place, *path) for path in texts_of(value))


def _unlike(values: list[Any]) -> Iterator[tuple[int, Any]]:
    """Yield of every type of value the fullest one, and its place."""
    for kind in dict.fromkeys(map(type, values)):
        alike = [(place, value) for place, value in enumerate(values) if type(value) is kind]
        yield max(alike, key=lambda one: len(one[1]) if isinstance(one[1], dict | list) else 0)


def with_value(content: dict[str, Any], path: Path_, value: str) -> str:
    """Return the document in JSON with another value, in JSON too, in one place."""
    changed = inner = json.loads(json.dumps(content))
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = _MARK
    return json.dumps(changed).replace(json.dumps(_MARK), value)


@pytest.fixture(scope="module")
def contents() -> dict[str, tuple[dict[str, Any], list[Path_]]]:
    """Of every kind of document that has text, the content, and where the text stands in it."""
    found = {}
    for kind, document in every_document().items():
        content = json.loads(document.model_dump_json(exclude_none=True))
        fields = list(texts_of(content))
        content = {"kind": kind, "version": document.current_version, **content}
        if fields:
            found[kind] = content, fields
    return found


@pytest.mark.parametrize("ending", [".json", ".yaml"])
def test_every_text_of_every_document(
    contents: dict[str, tuple[dict[str, Any], list[Path_]]], tmp_path: Path, ending: str
) -> None:
    """Reading takes long: one character is tried in each place, in turns."""
    assert {"graph", "profile", "cluster", "placement", "run"} <= contents.keys()
    path = (tmp_path / "file").with_suffix(ending)
    for content, fields in contents.values():
        for at, field in enumerate(fields):
            # JSON with escapes is YAML as well.
            dangerous = json.dumps(f"a{DANGEROUS[at % len(DANGEROUS)]}b")
            path.write_text(with_value(content, field, dangerous))
            with pytest.raises(InvalidFile) as told:
                read_any_document(path)
            assert f"{path}: field '{'.'.join(map(str, field))}'" in str(told.value), field
            assert str(told.value).isprintable()
        # Names of fields are text too.
        path.write_text(json.dumps({**content, "\x1b[2J": 1}) + "\n")
        with pytest.raises(InvalidFile, match="control character") as told:
            read_any_document(path)
        assert str(told.value).isprintable()


def test_errors_are_one_line_that_a_terminal_may_show() -> None:
    told = str(InvalidInput("a\x1b[2J\nname\u202e \udcff of a file"))
    assert told == r"a\x1b[2J name\u202e \udcff of a file"
    told.encode()


@given(st.text())
def test_text_is_refused_exactly_where_it_is_made_visible(text: str) -> None:
    refused = {"Cc", "Cf", "Cs", "Zl", "Zp"}
    dangerous = any(unicodedata.category(one) in refused for one in text)
    problem = problem_of_text(text)
    assert (problem is not None) == dangerous
    assert (visible(text) != text) == dangerous
    for safe in (visible(text), problem or ""):
        assert not any(unicodedata.category(one) in refused for one in safe)
