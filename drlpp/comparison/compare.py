"""Racing placements against each other on live workers, and the file of what was measured."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import ClassVar

from rich.console import Group, RenderableType

from drlpp.cli.tables import ComparisonRow, comparison_table, describe, seconds_text
from drlpp.comparison.contenders import PLAIN, Contender, Heat
from drlpp.comparison.plain import PlainPyTorch
from drlpp.comparison.race import RaceRules, heat, race
from drlpp.comparison.verdict import Entrant, Verdict, best_rival, judge, verdict_lines
from drlpp.errors import InvalidInput
from drlpp.io.documents import Document, read_document, write_document
from drlpp.io.quantities import Count
from drlpp.placement.measurement import FailedMeasurement, Outcome
from drlpp.runtime.session.session import ClusterSession

_HEAT_SHARE = 3
"""A measurement of the race has this many times the minibatches of one of a heat."""


class Comparison(Document):
    """What was measured side by side, of one model on the same workers.

    Attributes:
        model: its name.
        minibatches: of a measurement in the race.
        contenders: of the race; those that qualified in a heat are the last.
        heats: in which rivals qualified, of each kind one.
    """

    kind: ClassVar[str] = "comparison"

    model: str
    minibatches: Count
    contenders: tuple[Contender, ...]
    heats: tuple[Heat, ...] = ()

    @property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The contenders by index, together where they run the same."""
        found: dict[Hashable, list[int]] = {}
        for index, contender in enumerate(self.contenders):
            found.setdefault(contender.key, []).append(index)
        return tuple(map(tuple, found.values()))

    @property
    def entrants(self) -> tuple[Entrant, ...]:
        """What a verdict is about; numbers are those of :attr:`alike`."""
        return tuple(
            _entrant([self.contenders[index] for index in indices]) for indices in self.alike
        )

    @property
    def verdict(self) -> Verdict | None:
        """What the race says; None if nothing could be measured."""
        return judge(self.entrants)

    def contender(self, number: int) -> Contender:
        """The first of those that are alike, by the number of :attr:`alike`."""
        return self.contenders[self.alike[number][0]]

    def with_outcome(self, indices: Sequence[int], outcome: Outcome) -> Comparison:
        """The same with one more outcome of contenders that are alike."""
        contenders = list(self.contenders)
        for index in indices:
            contenders[index] = contenders[index].with_outcome(outcome)
        return self.model_copy(update={"contenders": tuple(contenders)})

    def with_heat(self, number: int, changed: Heat) -> Comparison:
        """The same with another state of a heat; the best of all join the contenders at its end."""
        heats = list(self.heats)
        heats[number] = changed
        after = self.model_copy(update={"heats": tuple(heats)})
        if not after.qualified:
            return after
        entrants = tuple(heat.entrant for heat in heats)
        return after.model_copy(update={"contenders": (*self.contenders, *entrants)})

    @property
    def qualified(self) -> bool:
        """Whether all heats are over, and their best among the contenders."""
        return all(heat.best is not None for heat in self.heats)

    @property
    def unmeasured(self) -> Comparison:
        """The same before the first measurement."""
        count = len(self.contenders) - len(self.heats) * self.qualified
        return self.model_copy(
            update={
                "contenders": tuple(c.unmeasured for c in self.contenders[:count]),
                "heats": tuple(heat.unmeasured for heat in self.heats),
            }
        )


def _entrant(alike: Sequence[Contender]) -> Entrant:
    names = dict.fromkeys(c.found_by for c in sorted(alike, key=lambda c: c.is_rival))
    return Entrant(
        found_by=tuple(names),
        configuration=alike[0].configuration,
        rival=any(c.is_rival for c in alike),
        learned=not all(c.is_rival for c in alike),
        simplicity=alike[0].simplicity,
        seconds=alike[0].seconds,
    )


@describe.register
def _(comparison: Comparison) -> RenderableType:
    contenders, entrants = comparison.contenders, comparison.entrants
    rows = [ComparisonRow(c.found_by, c.configuration, c.seconds) for c in contenders]
    best = best_rival(entrants)
    references = {
        "best\nrival": entrants[best].seconds if best is not None else (),
        "plain\nPyTorch": next((c.seconds for c in contenders if c.found_by == PLAIN), ()),
    }
    verdict = comparison.verdict
    lines = [] if verdict is None else list(verdict_lines(verdict, entrants))
    failures = [f"{c.found_by}: {c.failure}" for c in contenders if c.failure]
    heats = [_heat_text(heat) for heat in comparison.heats if len(heat.candidates) > 1]
    return Group(comparison_table(rows, references), *lines, *failures, *heats)


def _heat_text(heat: Heat) -> str:
    """Who ran for a kind's place in the race, the fastest of those that came furthest first."""
    ranked = sorted(heat.candidates, key=lambda c: (-len(c.seconds), median(c.seconds or [0.0])))
    tried = "; ".join(
        f"{c.configuration}: {seconds_text(median(c.seconds)) if c.seconds else 'failed'}"
        for c in ranked
    )
    return f"tried as {heat.kind}: {tried}"


def compare(
    session: ClusterSession,
    contenders: Sequence[Contender],
    heats: Sequence[Heat] = (),
    *,
    rules: RaceRules,
    minibatches: int,
    path: Path,
    on_progress: Callable[[str], None] = lambda done: None,
) -> Comparison:
    """Race the contenders, and the best of every heat, against each other.

    First the heats find that best (:func:`drlpp.comparison.race.heat`), with short measurements.
    They all meet in a race (:func:`drlpp.comparison.race.race`), whose measurements alone count.
    Contenders that run the same are measured once for all of them. Every measurement is written to
    ``path`` at once, and what that file holds is not measured again, if it is a comparison of these
    very contenders.

    Args:
        session: the workers.
        contenders: in the order of the first round.
        heats: of rivals, unmeasured.
        rules: when contenders are dropped and when the race ends.
        minibatches: of a measurement in the race.
        path: the file.
        on_progress: called before a heat's measurements and after a round with how far it is.
    """
    fresh = Comparison(
        model=str(session.captured.reference),
        minibatches=minibatches,
        contenders=tuple(contenders),
        heats=tuple(heats),
    )
    with PlainPyTorch(session) as plain:
        course = _Course(session, plain, _continued(path, fresh), path, on_progress)
        course.qualify()
        course.race(rules)
    return course.comparison


class _Course:
    """A comparison in progress: what is known is taken, what is measured is kept."""

    def __init__(
        self,
        session: ClusterSession,
        plain: PlainPyTorch,
        comparison: Comparison,
        path: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.comparison = comparison
        self._session = session
        self._plain = plain
        self._path = path
        self._tell = tell

    def qualify(self) -> None:
        """Run the heats that are not over."""
        minibatches = max(self.comparison.minibatches // _HEAT_SHARE, 1)
        for number, known in enumerate(self.comparison.heats):
            if known.best is None:
                self._run_heat(number, minibatches)

    def _run_heat(self, number: int, minibatches: int) -> None:
        candidates = self.comparison.heats[number].candidates
        outcomes = [iter(candidate.outcomes) for candidate in candidates]

        def measure(index: int) -> Outcome:
            if (outcome := next(outcomes[index], None)) is None:
                heats = self.comparison.heats
                self._tell(
                    f"choosing the best {heats[number].kind} of {len(candidates)}: "
                    f"{candidates[index].configuration} ({number + 1} of {len(heats)} kinds)"
                )
                outcome = self._measure(candidates[index], minibatches)
                changed = heats[number].with_outcome(index, outcome)
                self._keep(self.comparison.with_heat(number, changed))
            return outcome

        best = heat(len(candidates), measure)
        self._keep(self.comparison.with_heat(number, self.comparison.heats[number].decided(best)))

    def race(self, rules: RaceRules) -> None:
        """Race all contenders."""
        alike = self.comparison.alike
        outcomes: list[Iterator[Outcome]] = [
            iter(self.comparison.contenders[first].outcomes) for first, *_ in alike
        ]

        def measure(index: int) -> Outcome:
            if (outcome := next(outcomes[index], None)) is None:
                contender = self.comparison.contenders[alike[index][0]]
                outcome = self._measure(contender, self.comparison.minibatches)
                self._keep(self.comparison.with_outcome(alike[index], outcome))
            return outcome

        def tell(done: int, running: int) -> None:
            self._tell(f"racing: round {done} of at most {rules.rounds}, {running} left")

        race(len(alike), measure, rules, tell)

    def _measure(self, contender: Contender, minibatches: int) -> Outcome:
        candidate = contender.candidate
        try:
            if candidate is None:
                return self._plain.measure(contender.threads, minibatches, contender.method)
            return self._session.measure(candidate, minibatches)
        except InvalidInput as error:
            # Such as a minibatch that cannot be divided into GPipe's microbatches.
            return FailedMeasurement(failure="cannot run", reason=str(error))

    def _keep(self, comparison: Comparison) -> None:
        self.comparison = comparison
        write_document(self._path, comparison)


def _continued(path: Path, fresh: Comparison) -> Comparison:
    """The comparison in ``path`` if it is of the same contenders, else ``fresh``."""
    if not path.exists():
        return fresh
    known = read_document(path, Comparison)
    return known if known.unmeasured == fresh else fresh
