"""Measuring placements side by side, alternating, so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.console import Group, RenderableType
from rich.markup import escape

from drlpp.errors import InvalidInput
from drlpp.files import Document, Record, read_document, write_document
from drlpp.measurement import FailedMeasurement, Measurement, Outcome, median_measurement
from drlpp.placement import Placement
from drlpp.planners import BASELINES
from drlpp.report import ComparisonRow, comparison_table, describe
from drlpp.runtime.session import ClusterSession
from drlpp.training_options import Method


class Contender(Record):
    """A placement to be compared, how it runs, and who found it.

    ``measurements`` has one for each round so far; ``failure`` says why the last one failed.
    """

    found_by: str
    placement: Placement
    method: Method
    measurements: tuple[Measurement, ...] = ()
    failure: str | None = None

    @property
    def configuration(self) -> str:
        """Replicas per stage."""
        return self.placement.configuration

    @property
    def row(self) -> ComparisonRow:
        """For the table."""
        seconds = tuple(m.seconds_per_minibatch for m in self.measurements)
        return ComparisonRow(
            self.found_by, self.placement.configuration, () if self.failure else seconds
        )

    @property
    def median_measurement(self) -> Measurement | None:
        """The measurement in the middle by its seconds; None without any."""
        return median_measurement(self.measurements) if self.measurements else None

    def with_outcome(self, outcome: Outcome) -> Contender:
        """The same with one more outcome."""
        if isinstance(outcome, FailedMeasurement):
            return self.model_copy(update={"failure": outcome.reason})
        return self.model_copy(update={"measurements": (*self.measurements, outcome)})


class Comparison(Document):
    """Placements of one model measured side by side on the same workers."""

    kind: ClassVar[str] = "comparison"

    model: str
    minibatches: int
    contenders: tuple[Contender, ...]

    def with_contender(self, index: int, contender: Contender) -> Comparison:
        """The same with another state of one contender."""
        contenders = list(self.contenders)
        contenders[index] = contender
        return self.model_copy(update={"contenders": tuple(contenders)})

    def fastest(self) -> Contender | None:
        """The contender with the least median; None if all failed."""
        medians = {
            index: contender.row.median
            for index, contender in enumerate(self.contenders)
            if contender.row.median is not None
        }
        if not medians:
            return None
        return self.contenders[min(medians, key=lambda index: medians[index] or 0.0)]


@describe.register
def _(comparison: Comparison) -> RenderableType:
    rows = [contender.row for contender in comparison.contenders]
    known = [row.found_by for row in rows if row.found_by in BASELINES]
    failures = [
        f"{escape(c.found_by)}: {escape(c.failure)}" for c in comparison.contenders if c.failure
    ]
    return Group(comparison_table(rows, known), *failures)


def compare(
    session: ClusterSession,
    contenders: Sequence[Contender],
    *,
    rounds: int,
    minibatches: int,
    path: Path,
    on_round: Callable[[int], None] = lambda done: None,
) -> Comparison:
    """Measure every contender once in each of ``rounds`` rounds.

    The order within a round is reversed in every second one. A contender that failed is left out
    of later rounds. Every measurement is written to ``path`` at once, and what that file holds is
    not measured again, if it is a comparison of these very contenders.
    """
    fresh = Comparison(
        model=str(session.captured.reference),
        minibatches=minibatches,
        contenders=tuple(contenders),
    )
    comparison = _continued(path, fresh)

    for number in range(rounds):
        indices = range(len(contenders))
        for index in indices if number % 2 == 0 else reversed(indices):
            contender = comparison.contenders[index]
            if contender.failure or len(contender.measurements) > number:
                continue
            try:
                outcome = session.measure(contender.placement, minibatches, contender.method)
            except InvalidInput as error:
                # Such as a minibatch that cannot be divided into GPipe's microbatches.
                outcome = FailedMeasurement(failure="cannot run", reason=str(error))
            comparison = comparison.with_contender(index, contender.with_outcome(outcome))
            write_document(path, comparison)
        on_round(number + 1)
    return comparison


def _continued(path: Path, fresh: Comparison) -> Comparison:
    """The comparison in ``path`` if it is of the same contenders, else ``fresh``."""
    if not path.exists():
        return fresh
    known = read_document(path, Comparison)
    unmeasured = known.model_copy(
        update={
            "contenders": tuple(
                c.model_copy(update={"measurements": (), "failure": None}) for c in known.contenders
            )
        }
    )
    return known if unmeasured == fresh else fresh
