"""The file in which measurements are remembered: JSON lines, appended and synced one by one.

A header says what was measured; then there is one line for every run. A run of the program that is
killed at any moment therefore loses at most the measurement that was being made; the half-written
line that a kill may leave behind is dropped when the file is opened again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field, ValidationError

from drlpp.errors import InvalidFile, TrialTimeout, WorkerLost
from drlpp.io.documents import (
    Document,
    Record,
    content_of,
    document_of,
    first_problem,
    parse_mapping,
)
from drlpp.io.files import append, cut_off, read_lines
from drlpp.io.quantities import Count
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method

_PASSING = {WorkerLost.kind, TrialTimeout.kind}


class Header(Document):
    """The first line: what is measured and how.

    ``minibatches`` is all runs of a placement together, ``repetitions`` how many runs these are.
    ``method`` is that of all entries without one of their own.
    """

    kind: ClassVar[str] = "measurements"
    current_version: ClassVar[int] = 3

    model: str
    graph_fingerprint: str
    accelerators: Count
    minibatches: Count
    repetitions: Count = 1
    method: Method


class Entry(Record):
    """A line for every run of a candidate; ``method`` only where it is not the header's.

    ``found_by`` is a planner, the search or a policy, where the agent says it.
    """

    placement: Placement
    outcome: Measurement | FailedMeasurement = Field(discriminator="outcome")
    method: Method | None = None
    found_by: str | None = None

    @classmethod
    def of(cls, candidate: Candidate, outcome: Outcome, usual: Method) -> Entry:
        """Make an entry of a file where ``usual`` is the method of entries without one."""
        method = None if candidate.method == usual else candidate.method
        return cls(placement=candidate.placement, outcome=outcome, method=method)

    def candidate(self, usual: Method) -> Candidate:
        """Return what ran, where ``usual`` is the method of entries without one."""
        return Candidate(self.placement, self.method or usual)


def open_measurements(path: Path, expected: Header) -> tuple[Header, Iterator[Entry]]:
    """Read a file's header, and what it holds, after a check that it is of the same run.

    If there is no file, it is begun. A half-written last line is cut off, but only in such a file.

    Raises:
        InvalidFile: if it is of another run, written by a newer version, or damaged elsewhere.
    """
    lines, rest = read_lines(path)
    begin = json.dumps(content_of(expected), separators=(",", ":"))
    if not lines and begin.encode().startswith(rest):
        # A kill may have left a part of it.
        cut_off(path, rest)
        path.parent.mkdir(parents=True, exist_ok=True)
        append(path, begin)
        return expected, iter(())
    header = _read_header(path, lines)
    if header.graph_fingerprint != expected.graph_fingerprint:
        raise InvalidFile(
            f"{path}: holds measurements of {header.model} (fingerprint "
            f"{header.graph_fingerprint}), but the graph is {expected.model} "
            f"({expected.graph_fingerprint}); name another file"
        )
    for field in ("accelerators", "minibatches", "repetitions"):
        before, now = getattr(header, field), getattr(expected, field)
        if before != now:
            raise InvalidFile(
                f"{path}: was measured with {before} {field}, but this run has {now}; "
                f"use {before}, or name another file"
            )
    cut_off(path, rest)
    return header, _entries(path, lines[1:])


def read_measurements(path: Path) -> tuple[Header, Iterator[Entry]]:
    """Read what a file is about, and what it holds; nothing is changed.

    Raises:
        InvalidFile: if it is no such file, or damaged elsewhere than in its last line.
    """
    if not path.exists():
        raise InvalidFile(f"{path}: no such file")
    lines, _ = read_lines(path)
    return _read_header(path, lines), _entries(path, lines[1:])


def settled(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield those that a run which resumes with the file need not measure again.

    A lost worker, and a silence, may have had nothing to do with the placement: the machine may
    have been short of memory, or frozen, or the time limit too short. (A session measures a
    placement that loses a worker twice by itself, which is another kind of failure,
    ``LOST_TWICE``.)
    """
    for entry in entries:
        if getattr(entry.outcome, "failure", None) not in _PASSING:
            yield entry


def _entries(path: Path, lines: Sequence[str]) -> Iterator[Entry]:
    for number, line in enumerate(lines, start=2):
        where = f"{path}: line {number}"
        try:
            yield Entry.model_validate(parse_mapping(line, where))
        except ValidationError as error:
            raise InvalidFile(
                f"{where} is not a measurement ({first_problem(error)}); restore the file or "
                "delete that line"
            ) from None


def _read_header(path: Path, lines: Sequence[str]) -> Header:
    where = f"{path}: line 1"
    return document_of(parse_mapping(lines[0] if lines else "", where), where, Header)
