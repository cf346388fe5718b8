"""Races by time per minibatch: the file of what was measured side by side, and measuring it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import field_validator

from drlpp.errors import InvalidInput
from drlpp.io.documents import Document, read_document, write_document
from drlpp.io.quantities import Count, Speed
from drlpp.placement.measurement import FailedMeasurement, Outcome
from drlpp.racing.contenders import Contender, Heat, update_text, usual_method
from drlpp.racing.race import RaceRules, cost_of, heat, race
from drlpp.racing.rivals import entrant, measure, without_equals
from drlpp.racing.verdict import Entrant, Verdict, judge
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.method import Method

_HEAT_SHARE = 3
"""A measurement of the race has this many times the minibatches of one of a heat."""


class Comparison(Document):
    """What was measured side by side, of one model on the same workers.

    Attributes:
        model: its name.
        minibatches: of a measurement in the race, unless it is a long one.
        contenders: of the race, each once by the names of all that found it; those that qualified
            in a heat are the last.
        heats: in which rivals qualified, of each kind one.
        speeds: of every worker, if they emulated accelerators; plain PyTorch had the fastest.
    """

    kind: ClassVar[str] = "comparison"
    former_fields: ClassVar[frozenset[str]] = frozenset({"cluster"})

    model: str
    minibatches: Count
    contenders: tuple[Contender, ...]
    heats: tuple[Heat, ...] = ()
    speeds: tuple[Speed, ...] = ()

    @field_validator("contenders")
    @classmethod
    def _each_once(cls, contenders: tuple[Contender, ...]) -> tuple[Contender, ...]:
        return tuple(without_equals(contenders))

    @property
    def usual_method(self) -> Method:
        """What descriptions leave out: the method that was asked for."""
        waiting = (candidate for heat in self.heats for candidate in heat.candidates)
        return usual_method((*self.contenders, *waiting))

    @property
    def entrants(self) -> tuple[Entrant, ...]:
        """What a verdict is about."""
        usual = self.usual_method
        return tuple(entrant(one, _told(one, usual), one.seconds) for one in self.contenders)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the race; None if nothing could be measured."""
        return judge(self.entrants)

    def with_outcome(self, number: int, outcome: Outcome) -> Comparison:
        """Return a copy with one more outcome of a contender."""
        contenders = list(self.contenders)
        contenders[number] = contenders[number].with_outcome(outcome)
        return self.model_copy(update={"contenders": tuple(contenders)})

    def with_heat(self, number: int, changed: Heat) -> Comparison:
        """Return a copy with another state of a heat.

        When all heats are over, their best join the contenders.
        """
        heats = list(self.heats)
        heats[number] = changed
        contenders = list(self.contenders)
        if all(heat.best is not None for heat in heats):
            contenders = without_equals([*contenders, *(heat.qualified for heat in heats)])
        update = {"heats": tuple(heats), "contenders": tuple(contenders)}
        return self.model_copy(update=update)

    def continues(self, fresh: Comparison) -> bool:
        """Return whether these are measurements of the contenders and heats of a fresh one."""
        found = self.model_copy(
            update={
                "contenders": tuple(
                    one.unmeasured.model_copy(update={"found_by": other.found_by})
                    if set(other.names) <= set(one.names)
                    else one
                    for one, other in zip(self.contenders, fresh.contenders, strict=False)
                ),
                "heats": tuple(heat.unmeasured for heat in self.heats),
            }
        )
        return found == fresh


def _told(one: Contender, usual: Method) -> str:
    several = one.minibatches_of_update[1] > usual.accumulate
    every = f", updates every {update_text(one)} minibatches" if several else ""
    return f"{one.beside(usual)}{every}"


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

    First the heats find that best (:func:`drlpp.racing.race.heat`), with short measurements. They
    all meet in a race (:func:`drlpp.racing.race.race`), whose measurements alone count. Contenders
    that run the same are measured once for all of them. Every measurement is written to ``path``
    at once, and what that file holds is not measured again, if it is a comparison of these very
    contenders.

    Args:
        session: the workers.
        contenders: in the order of the first round.
        heats: of rivals, unmeasured.
        rules: when contenders are dropped and when the race ends.
        minibatches: of a measurement in the race, unless it is a long one.
        path: the file.
        on_progress: called before a heat's measurements and after a round with how far it is.

    Raises:
        HostLost: a host cannot be reached any more; what was measured is in the file.
    """
    fresh = Comparison(
        model=str(session.captured.reference),
        minibatches=minibatches,
        contenders=tuple(contenders),
        heats=tuple(heats),
        speeds=session.speeds if min(session.speeds) < 1 else (),
    )
    course = _Course(session, _continued(path, fresh), path, on_progress)
    for number, known in enumerate(course.comparison.heats):
        if known.best is None:
            course.run_heat(number, max(minibatches // _HEAT_SHARE, 1))
    course.race(rules)
    return course.comparison


class _Course:
    """A comparison in progress: what is known is taken, what is measured is kept."""

    def __init__(
        self,
        session: ClusterSession,
        comparison: Comparison,
        path: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.comparison = comparison
        self._session = session
        self._path = path
        self._tell = tell

    def run_heat(self, number: int, minibatches: int) -> None:
        """Let the best of a heat enter the race."""
        candidates = self.comparison.heats[number].candidates
        outcomes = [iter(candidate.outcomes) for candidate in candidates]
        usual = self.comparison.usual_method

        def run(index: int) -> float | None:
            if (outcome := next(outcomes[index], None)) is None:
                heats = self.comparison.heats
                self._tell(
                    f"choosing the best {heats[number].kind} of {len(candidates)}: "
                    f"{candidates[index].beside(usual)} ({number + 1} of {len(heats)} kinds)"
                )
                outcome = self._measure(candidates[index], minibatches)
                changed = heats[number].with_outcome(index, outcome)
                self._keep(self.comparison.with_heat(number, changed))
            return cost_of(outcome)

        # If all have failed, the first enters the race and tells why.
        best = heat(len(candidates), run) or 0
        decided = self.comparison.heats[number].model_copy(update={"best": best})
        self._keep(self.comparison.with_heat(number, decided))

    def race(self, rules: RaceRules) -> None:
        """Race all contenders."""
        contenders = self.comparison.contenders
        outcomes = [iter(contender.outcomes) for contender in contenders]

        def run(index: int, *, long: bool) -> float | None:
            if (outcome := next(outcomes[index], None)) is None:
                longer = rules.final if long else 1
                outcome = self._measure(contenders[index], longer * self.comparison.minibatches)
                self._keep(self.comparison.with_outcome(index, outcome))
            return cost_of(outcome)

        def tell(done: int, running: int) -> None:
            self._tell(f"racing: round {done} of at most {rules.rounds}, {running} left")

        race(len(contenders), run, rules, tell)

    def _measure(self, contender: Contender, minibatches: int) -> Outcome:
        try:
            return measure(self._session, contender, minibatches)
        except InvalidInput as error:
            # Such as a minibatch that cannot be divided into GPipe's microbatches.
            return FailedMeasurement(failure="cannot run", reason=str(error))

    def _keep(self, comparison: Comparison) -> None:
        self.comparison = comparison
        write_document(self._path, comparison)


def _continued(path: Path, fresh: Comparison) -> Comparison:
    """Return the comparison in ``path`` if it is of the same contenders, else ``fresh``."""
    if not path.exists():
        return fresh
    known = read_document(path, Comparison)
    return known if known.continues(fresh) else fresh
