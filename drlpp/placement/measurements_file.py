"""The file in which measurements are remembered: JSON lines, appended and synced one by one.

A header says what was measured; then there is one line for every run. A run of the program that is
killed at any moment therefore loses at most the measurement that was being made; the half-written
line that a kill may leave behind is dropped when the file is opened again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from drlpp.errors import InvalidFile, TrialTimeout, WorkerLost
from drlpp.io.documents import Record, first_problem, parse_mapping
from drlpp.io.files import append, cut_off, read_lines
from drlpp.io.quantities import Count
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.schedule.method import Method

FORMAT_VERSION = 3

_PASSING = {WorkerLost.kind, TrialTimeout.kind}


class Header(Record):
    """The first line: what is measured and how.

    ``minibatches`` is all runs of a placement together, ``repetitions`` how many runs these are.
    ``method`` is that of all entries without one of their own.
    """

    kind: Literal["measurements"] = "measurements"
    version: Count = FORMAT_VERSION
    model: str
    graph_fingerprint: str
    accelerators: Count
    minibatches: Count
    repetitions: Count = 1
    method: Method


class Entry(Record):
    """A line for every run of a candidate; ``method`` only where it is not the header's."""

    placement: Placement
    outcome: Measurement | FailedMeasurement = Field(discriminator="outcome")
    method: Method | None = None

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
    header = expected
    if lines:
        header = _checked_header(path, lines[0], expected)
    elif not expected.model_dump_json(exclude_none=True).encode().startswith(rest):
        # Nor what a kill left of a header: nothing of ours.
        raise _not_ours(path)
    cut_off(path, rest)
    if not lines:
        path.parent.mkdir(parents=True, exist_ok=True)
        append(path, expected, exclude_none=True)
    return header, _entries(path, lines[1:])


def read_measurements(path: Path) -> tuple[Header, Iterator[Entry]]:
    """Read what a file is about, and what it holds; nothing is changed.

    Raises:
        InvalidFile: if it is no such file, or damaged elsewhere than in its last line.
    """
    if not path.exists():
        raise InvalidFile(f"{path}: no such file")
    lines, _ = read_lines(path)
    return _read_header(path, lines[0] if lines else ""), _entries(path, lines[1:])


def settled(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield those that a run which resumes with the file need not measure again.

    A lost worker, and a silence, may have had nothing to do with the placement: the machine may
    have been short of memory, or frozen, or the time limit too short. So a placement may fail in
    such a way once. (A session measures a placement that loses a worker twice by itself, which is
    another kind of failure, ``LOST_TWICE``.)
    """
    forgiven: set[tuple[Placement, Method | None]] = set()
    for entry in entries:
        outcome = entry.outcome
        passing = isinstance(outcome, FailedMeasurement) and outcome.failure in _PASSING
        ran = entry.placement, entry.method
        if passing and ran not in forgiven:
            forgiven.add(ran)
        else:
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


def _read_header(path: Path, line: str) -> Header:
    where = f"{path}: line 1"
    if f'"{Header.model_fields["kind"].default}"' not in line:
        raise _not_ours(path)
    try:
        found = Header.model_validate(parse_mapping(line, where))
    except ValidationError as error:
        raise InvalidFile(
            f"{where} does not say what was measured ({first_problem(error)}); restore the file "
            "or name another one"
        ) from None
    if found.version > FORMAT_VERSION:
        raise InvalidFile(
            f"{path}: written by a newer drlpp (format version {found.version}; this one reads "
            f"{FORMAT_VERSION}); upgrade drlpp to read it"
        )
    return found


def _not_ours(path: Path) -> InvalidFile:
    return InvalidFile(
        f"{path}: line 1 does not say that this is a file of measurements; name another file, or "
        "one that does not exist yet"
    )


def _checked_header(path: Path, line: str, expected: Header) -> Header:
    found = _read_header(path, line)
    if found.graph_fingerprint != expected.graph_fingerprint:
        raise InvalidFile(
            f"{path}: holds measurements of {found.model} (fingerprint {found.graph_fingerprint}), "
            f"but the graph is {expected.model} ({expected.graph_fingerprint}); name another file"
        )
    for field in ("accelerators", "minibatches", "repetitions"):
        before, now = getattr(found, field), getattr(expected, field)
        if before != now:
            raise InvalidFile(
                f"{path}: was measured with {before} {field}, but this run has {now}; "
                f"use {before}, or name another file"
            )
    return found
