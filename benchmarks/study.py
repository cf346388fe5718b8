"""What a study is: a question, its cases, how one is run, and the tables that its rows give.

Rows are kept twice: ``runs/NAME.jsonl`` (not in git) has a line for each case as soon as it was
run, and ``benchmarks/results/NAME.csv`` (in git) is what the pages rest on, a row a case.
"""

from __future__ import annotations

import csv
import io
import json
import os
import platform
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from pandas import DataFrame
from pydantic import ValidationError

from drlpp.errors import InvalidFile
from drlpp.io.documents import Record, first_problem
from drlpp.io.files import write_atomically

RESULTS = Path(__file__).parent / "results"


def this_machine() -> str:
    """Say on which machine figures are measured, and on which day."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.machine()}, {len(os.sched_getaffinity(0))} cores; "
        f"Python {platform.python_version()}, torch {torch.__version__}; "
        f"{datetime.now(UTC).date().isoformat()}"
    )


class Row(Record):
    """What one case gave. Subclasses have a field ``case``, a frozen record, beside their own."""


@dataclass(frozen=True)
class Needs:
    """What a study needs to answer its question.

    Attributes:
        quiet: nothing else running on the machine, whose times it takes.
        root: control groups and network namespaces.
        gpu: a GPU.
        hours: of two cores, for all of its cases.
    """

    quiet: bool = False
    root: bool = False
    gpu: bool = False
    hours: float = 0.1

    def __str__(self) -> str:
        words = [word for word in ("quiet", "root", "gpu") if getattr(self, word)]
        return ", ".join([f"{self.hours:g} h", *words])


OneCase = TypeVar("OneCase", bound=Hashable)
OneRow = TypeVar("OneRow", bound=Row)


class Study(ABC, Generic[OneCase, OneRow]):
    """A question with a command and an answer.

    Attributes:
        name: of its files, and in commands.
        question: in one line.
        row: the class of its rows.
        needs: what it takes.
    """

    name: ClassVar[str]
    question: ClassVar[str]
    row: type[OneRow]
    needs: ClassVar[Needs] = Needs()

    @abstractmethod
    def cases(self, seeds: int | None, *, short: bool) -> list[OneCase]:
        """Return the cases in the order in which they are run.

        Args:
            seeds: how many; None for as many as the tables have.
            short: whether to return few small ones, which take seconds.
        """

    def wanted(self, cases: Sequence[OneCase], rows: Sequence[OneRow]) -> Iterable[OneCase]:
        """Return the cases that are still to be run; they may depend on what was found."""
        done = {row.case for row in rows}  # type: ignore[attr-defined]
        return [case for case in cases if case not in done]

    @abstractmethod
    def run(self, case: OneCase) -> OneRow:
        """Run one case, in a process of its own."""

    @abstractmethod
    def table(self, rows: Sequence[OneRow]) -> Mapping[str, DataFrame]:
        """Return tables of texts by their titles."""

    def said(self, rows: Sequence[OneRow]) -> str:
        """Return the answer in a sentence or two; empty if the tables are the answer."""
        return ""

    def figure(self, rows: Sequence[OneRow], path: Path) -> bool:
        """Draw the rows into a file; return False if this study has no figure."""
        return False

    def stored(self) -> list[OneRow]:
        """Return the rows in git; none if there are none yet."""
        path = RESULTS / f"{self.name}.csv"
        return read_csv(path, self.row) if path.exists() else []


def fields_of(row: type[Row]) -> dict[str, tuple[bool, Any]]:
    """Return the columns of a row's table: whether each belongs to the case, and its type.

    Columns of the case come first; a row has no field of a name that its case has.
    """
    case = row.model_fields["case"].annotation
    assert isinstance(case, type)
    assert issubclass(case, Record)
    columns = {name: (True, field.annotation) for name, field in case.model_fields.items()}
    for name, field in row.model_fields.items():
        if name != "case":
            assert name not in columns, f"{row.__name__}: its case has a field {name} as well"
            columns[name] = (False, field.annotation)
    return columns


def write_csv(path: Path, rows: Sequence[Row]) -> None:
    """Write a table with a row a case: texts as they are, everything else as JSON."""
    columns = fields_of(type(rows[0]))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        content = row.model_dump(mode="json")
        content |= content.pop("case")
        writer.writerow([_cell(content[name]) for name in columns])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, text.getvalue().encode())


def _cell(value: object) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def read_csv(path: Path, kind: type[OneRow]) -> list[OneRow]:
    """Return the rows of a table that :func:`write_csv` wrote.

    Raises:
        InvalidFile: a line is no row of this study.
    """
    columns = fields_of(kind)
    rows = []
    with path.open(newline="", encoding="utf-8") as file:
        for number, line in enumerate(csv.DictReader(file), start=2):
            content: dict[str, Any] = {"case": {}}
            try:
                for name, text in line.items():
                    of_case, type_ = columns[name]
                    found = None if text == "" and type_ is not str else text
                    if found is not None and not _is_text(type_):
                        found = json.loads(text)
                    (content["case"] if of_case else content)[name] = found
                rows.append(kind.model_validate(content))
            except (KeyError, json.JSONDecodeError) as error:
                raise InvalidFile(f"{path}, line {number}: {error!r} is not of {kind}") from None
            except ValidationError as error:
                raise InvalidFile(f"{path}, line {number}: {first_problem(error)}") from None
    return rows


def _is_text(kind: Any) -> bool:
    """Return whether a field is a text, one of some texts, or a text or nothing."""
    return kind == (str | None) or (isinstance(kind, type) and issubclass(kind, str))
