"""Control characters of files are refused when read, and no terminal ever gets one."""

from __future__ import annotations

import json
import unicodedata
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from drlpp.cli.command_line import build_console
from drlpp.cli.showing.tables import describe, describe_measurements
from drlpp.errors import InvalidFile, InvalidInput, RunFailure
from drlpp.file_content import problem_of_text, visible
from drlpp.io.documents import read_any_document, write_document
from drlpp.io.run_folder import RunRecord
from drlpp.placement.measurements_file import read_measurements
from tests.endurance.fuzzing.documents import every_document, measurement_lines
from tests.endurance.fuzzing.numbers import Path_, fields_of, with_value

DANGEROUS = [
    *("\x00", "\x07", "\x1b[2J", "\n", "\r", "\x7f", "\x9b31m"),
    *("\u202e", "\u2066", "\u200b", "\u2028", "\ud800"),
]
STRING = frozenset({str})
KINDS = [
    "graph",
    "profile",
    "cluster",
    "placement",
    "run",
    "comparison",
    "microbatches",
    "search",
    "training race",
    "episode state",
]


@pytest.fixture(scope="module")
def contents() -> dict[str, tuple[dict[str, Any], list[Path_]]]:
    """Of every kind of document the content, and where text stands in it."""
    found = {}
    for kind, document in every_document().items():
        content = json.loads(document.model_dump_json(exclude_none=True))
        content = {"kind": kind, "version": document.current_version, **content}
        found[kind] = content, list(fields_of(STRING, type(document), content))
    assert set(KINDS) == {kind for kind, (_, fields) in found.items() if fields}
    return found


def text_field(path: Path_) -> str:
    return ".".join(map(str, path))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("ending", "one_of"),
    [(".json", 1), (".yaml", 4), pytest.param(".yaml", 1, marks=pytest.mark.slow)],
)
def test_every_text_of_every_document(
    contents: dict[str, tuple[dict[str, Any], list[Path_]]],
    tmp_path: Path,
    kind: str,
    ending: str,
    one_of: int,
) -> None:
    """Reading YAML takes long: one character in so many is tried in each place, in turns."""
    content, fields = contents[kind]
    path = (tmp_path / "file").with_suffix(ending)
    for at, field in enumerate(fields):
        for dangerous in DANGEROUS[at % one_of :: one_of]:
            # JSON with escapes is YAML as well.
            path.write_text(with_value(content, field, json.dumps(f"a{dangerous}b")) + "\n")
            with pytest.raises(InvalidFile) as told:
                read_any_document(path)
            assert f"{path}: field '{text_field(field)}'" in str(told.value), field
            assert str(told.value).isprintable()
    # Names of fields are text too.
    path.write_text(json.dumps({**content, "\x1b[2J": 1}) + "\n")
    with pytest.raises(InvalidFile, match="control character") as told:
        read_any_document(path)
    assert str(told.value).isprintable()


@pytest.mark.parametrize("kind", KINDS)
def test_markup_is_shown_as_it_stands(
    contents: dict[str, tuple[dict[str, Any], list[Path_]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    content, fields = contents[kind]
    path = tmp_path / "file.json"
    console = build_console()
    console.width = 2000
    shown = 0
    for field in fields:
        path.write_text(with_value(content, field, json.dumps("[red]q:q[/red]")))
        try:
            document = read_any_document(path)
        except InvalidFile:
            continue
        console.file = StringIO()
        console.print(describe(document))
        text = "".join(console.file.getvalue().split())
        if "q:q" in text:
            assert "[red]q:q[/red]" in text, field
            shown += 1
    assert shown or kind == "cluster"


def test_lines_of_measurements(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    records = measurement_lines()
    lines = [record.model_dump(mode="json") for record in records]
    tried = 0
    for index, record in enumerate(records):
        for field in fields_of(STRING, type(record), lines[index]):
            texts = [json.dumps(line) for line in lines]
            texts[index] = with_value(lines[index], field, json.dumps("a\x1b[31mb"))
            path.write_text("".join(f"{text}\n" for text in texts))
            with pytest.raises(InvalidFile, match=f"line {index + 1}: field '{text_field(field)}'"):
                list(read_measurements(path)[1])
            tried += 1
    assert tried >= 4
    texts = [json.dumps(line).replace("why", "[red]why[/red]") for line in lines]
    path.write_text("".join(f"{text}\n" for text in texts))
    console = build_console()
    console.file = StringIO()
    console.print(describe_measurements(path))
    assert "[red]why[/red]" in console.file.getvalue()


def test_what_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    record = RunRecord(command="drlpp train", settings={"model": {"name": "a\x1bb"}})
    with pytest.raises(InvalidFile, match=r"cannot be written: field 'settings\.model\.name'"):
        write_document(tmp_path / "run.json", record)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [InvalidInput, InvalidFile, RunFailure])
def test_errors_are_one_line_that_a_terminal_may_show(error: Any) -> None:
    told = str(error("a\x1b[2J\nname\u202e \udcff of a file"))
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


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs"])))
def test_text_of_any_language_is_text(text: str) -> None:
    assert problem_of_text(text) is None
    console = Console(file=StringIO(), markup=False, emoji=False, width=10_000, soft_wrap=True)
    console.print(text)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().rstrip("\n") == text
