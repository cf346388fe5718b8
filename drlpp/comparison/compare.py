"""Racing placements against each other on live workers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from drlpp.comparison.comparison_file import Comparison
from drlpp.comparison.contenders import Contender, Heat
from drlpp.comparison.plain import PlainPyTorch
from drlpp.comparison.race import RaceRules, heat, race
from drlpp.errors import InvalidInput
from drlpp.io.documents import read_document, write_document
from drlpp.placement.measurement import FailedMeasurement, Outcome
from drlpp.runtime.session.session import ClusterSession

_HEAT_SHARE = 3
"""A measurement of the race has this many times the minibatches of one of a heat."""


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
        minibatches: of a measurement in the race, unless it is a long one.
        path: the file.
        on_progress: called before a heat's measurements and after a round with how far it is.

    Raises:
        HostLost: a host cannot be reached any more; what was measured is in the file.
    """
    speeds = session.speeds
    fresh = Comparison(
        model=str(session.captured.reference),
        minibatches=minibatches,
        contenders=tuple(contenders),
        heats=tuple(heats),
        speeds=speeds if min(speeds) < 1 else (),
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
        workers: ClusterSession,
        plain: PlainPyTorch,
        comparison: Comparison,
        path: Path,
        tell: Callable[[str], None],
    ) -> None:
        self.comparison = comparison
        self._workers = workers
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
        usual = self.comparison.usual_method

        def measure(index: int) -> Outcome:
            if (outcome := next(outcomes[index], None)) is None:
                heats = self.comparison.heats
                self._tell(
                    f"choosing the best {heats[number].kind} of {len(candidates)}: "
                    f"{candidates[index].beside(usual)} ({number + 1} of {len(heats)} kinds)"
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

        def measure(index: int, *, long: bool) -> Outcome:
            if (outcome := next(outcomes[index], None)) is None:
                contender = self.comparison.contenders[alike[index][0]]
                longer = rules.final if long else 1
                outcome = self._measure(contender, longer * self.comparison.minibatches)
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
            return self._workers.measure(candidate, minibatches)
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
    return known if known.unmeasured == fresh else fresh
