"""Racing placements against each other on live workers, and the file of what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from rich.console import Group, RenderableType

from drlpp.errors import InvalidInput
from drlpp.files import Document, Record, read_document, write_document
from drlpp.measurement import FailedMeasurement, Measurement, Outcome, median_measurement
from drlpp.placement import Placement
from drlpp.planners import BASELINES
from drlpp.quantities import Count
from drlpp.race import Lead, RaceRules, Standing, race
from drlpp.report import ComparisonRow, comparison_table, confidence_text, describe
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

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """Of all rounds so far."""
        if self.failure is None:
            return self.measurements
        return (*self.measurements, FailedMeasurement(failure="failed", reason=self.failure))

    def with_outcome(self, outcome: Outcome) -> Contender:
        """The same with one more outcome."""
        if isinstance(outcome, FailedMeasurement):
            return self.model_copy(update={"failure": outcome.reason})
        return self.model_copy(update={"measurements": (*self.measurements, outcome)})


class Comparison(Document):
    """Placements of one model measured side by side on the same workers."""

    kind: ClassVar[str] = "comparison"

    model: str
    minibatches: Count
    contenders: tuple[Contender, ...]

    @property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The contenders by index, together where placement and method are the same."""
        found: dict[tuple[Placement, Method], list[int]] = {}
        for index, contender in enumerate(self.contenders):
            key = contender.placement.canonical, contender.method
            found.setdefault(key, []).append(index)
        return tuple(map(tuple, found.values()))

    @property
    def standing(self) -> Standing:
        """Who is ahead of whom; numbers are those of :attr:`alike`."""
        return Standing.of([self.contenders[first].row.seconds for first, *_ in self.alike])

    def with_outcome(self, indices: Sequence[int], outcome: Outcome) -> Comparison:
        """The same with one more outcome of contenders that are alike."""
        contenders = list(self.contenders)
        for index in indices:
            contenders[index] = contenders[index].with_outcome(outcome)
        return self.model_copy(update={"contenders": tuple(contenders)})

    def fastest(self) -> Contender | None:
        """The contender that won, the first of those that are alike; None if all failed."""
        winner = self.standing.winner
        return None if winner is None else self.contenders[self.alike[winner][0]]


@describe.register
def _(comparison: Comparison) -> RenderableType:
    rows = [contender.row for contender in comparison.contenders]
    known = [row.found_by for row in rows if row.found_by in BASELINES]
    failures = [f"{c.found_by}: {c.failure}" for c in comparison.contenders if c.failure]
    closest = comparison.standing.closest
    verdict = []
    if closest is not None:
        rival = comparison.contenders[comparison.alike[closest.rival][0]]
        verdict = [_verdict(closest, f"{rival.found_by} ({rival.configuration})")]
    return Group(comparison_table(rows, known), *verdict, *failures)


def _verdict(lead: Lead, rival: str) -> str:
    if lead.high == math.inf:
        return f"{lead.ratio:.2f}× over {rival} in a single round, which says nothing of its noise"
    # The winner has the least median; a rival may still have the lesser mean.
    how = "fastest" if lead.probability >= 0.5 else "fastest by median only,"
    return (
        f"{how} with {confidence_text(lead.probability)} confidence: {lead.ratio:.2f}× "
        f"({lead.low:.2f}–{lead.high:.2f}) over {rival}, of which it is least sure"
    )


def compare(
    session: ClusterSession,
    contenders: Sequence[Contender],
    *,
    rules: RaceRules,
    minibatches: int,
    path: Path,
    on_round: Callable[[int, int], None] = lambda done, running: None,
) -> Comparison:
    """Race the contenders against each other (:func:`drlpp.race.race`).

    Contenders with the same placement and method are measured once for all of them. Every
    measurement is written to ``path`` at once, and what that file holds is not measured again, if
    it is a comparison of these very contenders.

    Args:
        session: the workers.
        contenders: in the order of the first round.
        rules: when contenders are dropped and when the race ends.
        minibatches: of a measurement.
        path: the file.
        on_round: called after every round with the rounds so far and the placements left.
    """
    fresh = Comparison(
        model=str(session.captured.reference),
        minibatches=minibatches,
        contenders=tuple(contenders),
    )
    comparison = _continued(path, fresh)
    alike = comparison.alike
    runs = [0] * len(alike)

    def measure(index: int) -> Outcome:
        nonlocal comparison
        contender = comparison.contenders[alike[index][0]]
        known = contender.outcomes[runs[index] :]
        runs[index] += 1
        if known:
            return known[0]
        try:
            outcome = session.measure(contender.placement, minibatches, contender.method)
        except InvalidInput as error:
            # Such as a minibatch that cannot be divided into GPipe's microbatches.
            outcome = FailedMeasurement(failure="cannot run", reason=str(error))
        comparison = comparison.with_outcome(alike[index], outcome)
        write_document(path, comparison)
        return outcome

    race(len(alike), measure, rules, on_round)
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
