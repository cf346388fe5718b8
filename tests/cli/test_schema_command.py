"""The JSON Schemas are those of the files: what is written conforms, and what is wrong does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from benchmarks.fuzzing.documents import every_document
from drlpp.cli.schema_command import all_schemas, file_name, print_schema, text_of
from drlpp.errors import InvalidInput
from drlpp.io.documents import write_document
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.measurements_file import Entry, Header
from drlpp.placement.placement import Placement

SCHEMAS = all_schemas()
SHIPPED = Path("docs/schemas")


def validator(kind: str) -> Draft202012Validator:
    Draft202012Validator.check_schema(SCHEMAS[kind])
    return Draft202012Validator(SCHEMAS[kind])


def content_of(kind: str, folder: Path) -> dict[str, Any]:
    written = write_document(folder / "file.json", every_document()[kind])
    content: dict[str, Any] = json.loads(written.read_text())
    return content


@pytest.mark.parametrize("kind", [kind for kind in SCHEMAS if kind != "measurements"])
def test_what_is_written_conforms(kind: str, tmp_path: Path) -> None:
    content = content_of(kind, tmp_path)
    check = validator(kind)
    check.validate(content)
    required = SCHEMAS[kind]["required"]
    for wrong in (
        {**content, "kind": "another"},
        {**content, "version": content["version"] + 1},
        {**content, "unheard-of": 1},
        *({key: value for key, value in content.items() if key != field} for field in required),
    ):
        assert not check.is_valid(wrong)


def test_lines_of_measurements_conform() -> None:
    check = validator("measurements")
    header = Header(
        model="vgg16", graph_fingerprint="abc", accelerators=2, minibatches=30, repetitions=1
    )
    failure = FailedMeasurement(failure="timeout", reason="it took too long")
    entry = Entry(placement=Placement.from_assignment([0, 1], [0, 1]), outcome=failure)
    for line in (header, entry):
        check.validate(json.loads(line.model_dump_json(exclude_none=True)))
    assert not check.is_valid({"placement": 1, "outcome": {"outcome": "measured"}})


def test_the_schemas_in_the_docs_are_these() -> None:
    """``drlpp schema -o docs/schemas`` writes them."""
    assert {path.name for path in SHIPPED.glob("*.json")} == {file_name(kind) for kind in SCHEMAS}
    for kind, schema in SCHEMAS.items():
        assert (SHIPPED / file_name(kind)).read_text() == text_of(schema), kind


def test_a_schema_is_printed_or_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_schema("placement", None)
    assert json.loads(capsys.readouterr().out) == SCHEMAS["placement"]
    print_schema(None, tmp_path)
    assert len(list(tmp_path.glob("*.schema.json"))) == len(SCHEMAS)
    with pytest.raises(InvalidInput, match="no files of the kind 'plaecment'; there are check"):
        print_schema("plaecment", None)
