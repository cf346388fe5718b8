"""Every distinct placement is measured once and remembered, within a run and across runs.

With a path, the memory is a file of JSON lines: a header that says what was measured, then one
line for each placement, appended and synced before the outcome is handed out. A run that is
killed at any moment therefore loses at most the measurement that was being made; the half-written
line that a kill may leave behind is dropped when the file is opened again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from pydantic import Field, ValidationError

from drlpp.envs.measurer import Measurer
from drlpp.errors import InvalidFile
from drlpp.files import Record
from drlpp.graph import OpGraph
from drlpp.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement import Placement, Stage

FORMAT_VERSION = 1


class MemorySummary(NamedTuple):
    """Counts of a memory, and the fewest seconds per minibatch in it (``None`` without any).

    ``distinct`` counts every placement that was measured, ``failed`` those among them that failed,
    ``hits`` how often an outcome was answered from memory since it was opened.
    """

    distinct: int
    failed: int
    hits: int
    best_seconds: float | None


class _Header(Record):
    kind: Literal["measurements"] = "measurements"
    version: int = FORMAT_VERSION
    model: str
    graph_fingerprint: str
    accelerators: int
    minibatches: int


class _Entry(Record):
    placement: Placement
    outcome: Measurement | FailedMeasurement = Field(discriminator="outcome")


class MeasurementMemory:
    """A measurer that never measures the same placement twice.

    Failed measurements are remembered like the others, whatever the reason, so that a placement
    that loses a worker or hangs costs its timeout once.

    Args:
        measurer: the cluster that measures.
        minibatches: over how many minibatches it measures (drl-pp §4.2: 30).
        path: the file to keep outcomes in; what it already holds is not measured again.

    Raises:
        InvalidFile: if the file was written for another graph, number of accelerators or of
            minibatches, by a newer version, or is damaged elsewhere than in its last line.
    """

    def __init__(
        self, measurer: Measurer, minibatches: int = 30, path: str | Path | None = None
    ) -> None:
        self.measurer = measurer
        self.minibatches = minibatches
        self.path = None if path is None else Path(path)
        self._outcomes: dict[Placement, Outcome] = {}
        self._best: tuple[Placement, Measurement] | None = None
        self._failed = 0
        self._hits = 0
        if self.path is not None:
            self._open(self.path)

    @property
    def graph(self) -> OpGraph:
        """The model that is measured."""
        return self.measurer.graph

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""
        return self.measurer.accelerators

    @property
    def outcomes(self) -> Mapping[Placement, Outcome]:
        """Every outcome so far, by canonical placement, in the order they were measured."""
        return MappingProxyType(self._outcomes)

    @property
    def distinct(self) -> int:
        """How many distinct placements have been measured, failed ones included."""
        return len(self._outcomes)

    @property
    def failed(self) -> int:
        """How many of the distinct placements failed."""
        return self._failed

    @property
    def hits(self) -> int:
        """How often a placement was answered from memory since it was opened."""
        return self._hits

    @property
    def summary(self) -> MemorySummary:
        """All counts at once, small enough to be sent between processes."""
        seconds = None if self._best is None else self._best[1].seconds_per_minibatch
        return MemorySummary(self.distinct, self.failed, self.hits, seconds)

    def measure(self, placement: Placement) -> tuple[Outcome, bool]:
        """The outcome of a placement, and whether it was remembered rather than measured."""
        key = canonical(placement)
        remembered = self._outcomes.get(key)
        if remembered is not None:
            self._hits += 1
            return remembered, True
        outcome = self.measurer.measure(key, self.minibatches)
        if self.path is not None:
            _append(self.path, _Entry(placement=key, outcome=outcome))
        self._remember(key, outcome)
        return outcome, False

    def best(self) -> tuple[Placement, Measurement] | None:
        """The placement with the fewest seconds per minibatch, the earliest of equals."""
        return self._best

    def close(self) -> None:
        """Close the measurer; everything measured is in the file already."""
        self.measurer.close()

    def _remember(self, placement: Placement, outcome: Outcome) -> None:
        self._outcomes[placement] = outcome
        if isinstance(outcome, FailedMeasurement):
            self._failed += 1
        elif self._best is None or (
            outcome.seconds_per_minibatch < self._best[1].seconds_per_minibatch
        ):
            self._best = placement, outcome

    def _open(self, path: Path) -> None:
        header = _Header(
            model=self.graph.model,
            graph_fingerprint=self.graph.fingerprint,
            accelerators=self.accelerators,
            minibatches=self.minibatches,
        )
        lines = _complete_lines(path)
        if not lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            _append(path, header)
            return
        _check_header(path, lines[0], header)
        for entry in _entries(path, lines[1:]):
            self._remember(entry.placement, entry.outcome)


def read_measurements(path: Path) -> tuple[str, dict[Placement, Outcome]]:
    """The model that a file of measurements is about, and every placement in it with its outcome.

    Raises:
        InvalidFile: if it is no such file, or damaged elsewhere than in its last line.
    """
    if not path.exists():
        raise InvalidFile(f"{path}: no such file")
    lines = _complete_lines(path, keep=True)
    header = _read_header(path, lines[0] if lines else "")
    return header.model, {e.placement: e.outcome for e in _entries(path, lines[1:])}


def _entries(path: Path, lines: Sequence[str]) -> Iterator[_Entry]:
    for number, line in enumerate(lines, start=2):
        try:
            yield _Entry.model_validate_json(line)
        except ValidationError as error:
            raise InvalidFile(
                f"{path}: line {number} is not a measurement "
                f"({error.errors()[0]['msg']}); restore the file or delete that line"
            ) from None


def canonical(placement: Placement) -> Placement:
    """The same placement with the operators of every stage sorted."""
    return Placement(
        stages=tuple(
            Stage(operators=tuple(sorted(stage.operators)), accelerators=stage.accelerators)
            for stage in placement.stages
        )
    )


def _append(path: Path, record: Record) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(record.model_dump_json() + "\n")
        file.flush()
        os.fsync(file.fileno())


def _complete_lines(path: Path, keep: bool = False) -> list[str]:
    """The lines of the file without a last half line, which is cut off unless ``keep``."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise InvalidFile(f"{path}: cannot be read ({error})") from None
    complete = content[: content.rfind(b"\n") + 1]
    if len(complete) < len(content) and not keep:
        os.truncate(path, len(complete))
    return complete.decode("utf-8", errors="replace").splitlines()


def _read_header(path: Path, line: str) -> _Header:
    try:
        found = _Header.model_validate_json(line)
    except ValidationError:
        raise InvalidFile(
            f"{path}: line 1 does not say that this is a file of measurements; name another file, "
            "or one that does not exist yet"
        ) from None
    if found.version > FORMAT_VERSION:
        raise InvalidFile(
            f"{path}: written by a newer drlpp (format version {found.version}; this one reads up "
            f"to {FORMAT_VERSION}); upgrade drlpp to read it"
        )
    return found


def _check_header(path: Path, line: str, expected: _Header) -> None:
    found = _read_header(path, line)
    if found.graph_fingerprint != expected.graph_fingerprint:
        raise InvalidFile(
            f"{path}: holds measurements of {found.model} (fingerprint {found.graph_fingerprint}), "
            f"but the graph is {expected.model} ({expected.graph_fingerprint}); name another file"
        )
    for field in ("accelerators", "minibatches"):
        before, now = getattr(found, field), getattr(expected, field)
        if before != now:
            raise InvalidFile(
                f"{path}: was measured with {before} {field}, but this run has {now}; "
                f"use {before}, or name another file"
            )
