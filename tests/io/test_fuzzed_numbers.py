"""Every number of every document at its extremes: a result, or one readable line, in bounds.

`python -m tests.endurance.fuzzing numbers` says how. Its process has a limit of memory,
and each document one of time.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import Field

from drlpp.io.documents import Document, Record, document_kinds
from tests.endurance.fuzzing.documents import every_document
from tests.endurance.fuzzing.numbers import EXTREMES, NUMBERS, fields_of, tried, with_value

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "one_of",
    [pytest.param(1, marks=pytest.mark.slow), pytest.param(96, marks=pytest.mark.system)],
)
def test_numbers_at_their_extremes(one_of: int) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.endurance.fuzzing", "numbers", "--one-of", str(one_of)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=290,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""


def test_a_share_has_every_field_and_every_number() -> None:
    fields = [("a",), ("b", 0), ("c",)]
    whole, share = list(tried(fields, 1)), list(tried(fields, 8))
    assert whole == [(field, number) for field in fields for number in EXTREMES]
    assert {field for field, _ in share} == set(fields)
    eight = [(str(at),) for at in range(8)]
    assert {number for _, number in tried(eight, 8)} == set(EXTREMES)


def test_every_kind_is_tried() -> None:
    shipped = {k for k, one in document_kinds().items() if one.__module__.startswith("drlpp.")}
    assert shipped == set(every_document())


def test_fields_with_numbers_are_found_by_themselves() -> None:
    class Inner(Record):
        seconds: float | None = None
        name: str = ""

    class Made(Record):
        inner: Inner
        pairs: tuple[tuple[int, str], ...] = ()
        count: int = Field(default=1, ge=1)
        several: dict[str, Inner | float] = Field(default_factory=dict)
        mixed: bool | int | str | list[float] = 1

    content = {"inner": {}, "several": {"a": {"seconds": 1.0}}}
    found = list(fields_of(NUMBERS, Made, content))
    assert found == [
        ("inner", "seconds"),
        ("pairs", 0, 0),
        ("count",),
        ("several", "a"),
        ("several", "a", "seconds"),
        ("mixed",),
        ("mixed", 0),
    ]
    for path in found:
        made = json.loads(with_value(content, path, "123456789"))
        for part in path:
            made = made[part]
        assert made == 123456789
    with pytest.raises(ValueError, match="inner: a document to try numbers in has to have it"):
        list(fields_of(NUMBERS, Made, {}))
    assert not issubclass(Made, Document)
