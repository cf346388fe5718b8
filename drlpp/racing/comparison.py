"""Races by time per minibatch: the file of what was measured side by side, and measuring it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from drlpp.io.documents import Document, read_document, write_document
from drlpp.io.quantities import Count, Speed
from drlpp.racing.contenders import (
    Contender,
    Heat,
    compiled_as_plain,
    usual_method,
)
from drlpp.racing.race import LEAST_ROUNDS, LONG, cost_of, heat, race
from drlpp.racing.rivals import measure, without_equals
from drlpp.racing.verdict import Entrant, Verdict, judge
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster

_HOPELESS = 1.5
"""What is this many times as slow as the fastest in the heats is not compiled for the race."""

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

    model: str
    minibatches: Count
    contenders: tuple[Contender, ...]
    heats: tuple[Heat, ...] = ()
    speeds: tuple[Speed, ...] = ()

    @property
    def usual_method(self) -> Method:
        """What descriptions leave out: the method that was asked for."""
        waiting = (candidate for heat in self.heats for candidate in heat.candidates)
        return usual_method((*self.contenders, *waiting))

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the race; None if nothing could be measured."""
        usual = self.usual_method
        # What updates otherwise is not judged by seconds.
        return judge(
            [
                Entrant(one, one.beside(usual), () if one.averages_weights else one.seconds)
                for one in self.contenders
            ]
        )


def compare(
    session: ClusterSession,
    contenders: Sequence[Contender],
    heats: Sequence[Heat] = (),
    *,
    cluster: Cluster,
    rounds: int,
    minibatches: int,
    path: Path,
    on_progress: Callable[[str], None] = lambda done: None,
) -> Comparison:
    """Race the contenders, and the best of every heat, against each other.

    First the heats find that best (:func:`drlpp.racing.race.heat`), with short measurements. If
    plain PyTorch is best compiled, all but hopeless ones are compiled then. They all meet in a race
    (:func:`drlpp.racing.race.race`), whose measurements alone count. Contenders that run the same
    are measured once for all of them. Every measurement is written to ``path`` at once, and what
    that file holds of these very contenders is not measured again.

    Args:
        session: the workers.
        contenders: in the order of the first round.
        heats: of rivals, unmeasured.
        cluster: that says which accelerators do not differ.
        rounds: the most that the race has.
        minibatches: of a measurement in the race, unless it is a long one.
        path: the file.
        on_progress: called before a heat's measurements and after a round with how far it is.

    Raises:
        HostLost: a host cannot be reached any more; what was measured is in the file.
    """
    fresh = Comparison(
        model=str(session.captured.reference),
        minibatches=minibatches,
        contenders=tuple(without_equals(contenders, cluster)),
        heats=tuple(heats),
        speeds=session.speeds if min(session.speeds) < 1 else (),
    )
    return _Course(session, cluster, fresh, path, on_progress).run(rounds)


@dataclass
class _Course:
    """A comparison in progress: what its file knows is taken, what is measured is kept there."""

    session: ClusterSession
    cluster: Cluster
    fresh: Comparison
    path: Path
    tell: Callable[[str], None]

    def __post_init__(self) -> None:
        self.contenders = list(self.fresh.contenders)
        self.heats = [list(heat.candidates) for heat in self.fresh.heats]
        known = read_document(self.path, Comparison) if self.path.exists() else self.fresh
        measured = {"contenders": self.fresh.contenders, "heats": self.fresh.heats}
        same = known.model_copy(update=measured) == self.fresh
        self.known = known if same else self.fresh

    def run(self, rounds: int) -> Comparison:
        """Run the heats, and the race of all that qualify."""
        length, qualified = self.fresh.minibatches, []
        known = {heat.kind: heat.candidates for heat in self.known.heats}
        for number, candidates in enumerate(self.heats, 1):
            kind, where = candidates[0].found_by, f"{number} of {len(self.heats)} kinds"
            what = f"choosing the best {kind} of {len(candidates)} ({where})"
            short = max(length // _HEAT_SHARE, 1)
            run = self._measuring(candidates, known.get(kind, ()), short, what)
            # If all have failed, the first enters the race and tells why.
            best = heat(len(candidates), run) or 0
            # In the race only its measurements of the race count.
            qualified.append(candidates[best].model_copy(update={"measurements": ()}))
        everyone = compiled_as_plain([*self.contenders, *qualified], self._hopeless())
        alike = without_equals(everyone, self.cluster)
        self.contenders = sorted(alike, key=lambda one: one.averages_weights)
        run = self._measuring(self.contenders, self.known.contenders, length)
        self._keep()

        def on_round(done: int, running: int) -> None:
            self.tell(f"racing: round {done} of at most {rounds}, {running} candidates left")

        judged = sum(not one.averages_weights for one in self.contenders)
        race(judged, run, rounds, on_round)
        for number in range(judged, len(self.contenders)):
            self.tell(f"measuring {self.contenders[number].found_by}, which is not in the race")
            all(run(number) is not None for _ in range(LEAST_ROUNDS))
        return self._keep()

    def _hopeless(self) -> set[Hashable]:
        """Return the keys of what heats have shown to be far slower than others, as they are."""
        medians = {
            one.key: statistics.median(one.seconds)
            for candidates in self.heats
            for one in candidates
            if one.seconds and not one.method.compiled
        }
        limit = _HOPELESS * min(medians.values(), default=0.0)
        return {key for key, seconds in medians.items() if seconds > limit}

    def _measuring(
        self, group: list[Contender], known: Sequence[Contender], minibatches: int, what: str = ""
    ) -> Callable[..., float | None]:
        """Return what measures one of a group by its number; of a heat it tells before ``what``.

        What is known of the very same contenders comes first.
        """
        if [one.key for one in group] == [one.key for one in known]:
            for number, one in enumerate(known):
                found = {"measurements": one.measurements, "failure": one.failure}
                group[number] = group[number].model_copy(update=found)
        outcomes = [iter(one.outcomes) for one in group]

        def run(index: int, long: bool = False) -> float | None:
            if (outcome := next(outcomes[index], None)) is None:
                if what:
                    self.tell(f"{what}: {group[index].beside(self.fresh.usual_method)}")
                outcome = measure(self.session, group[index], minibatches * (LONG if long else 1))
                group[index] = group[index].with_outcome(outcome)
                self._keep()
            return cost_of(outcome, group[index].handicap if what else 1.0)

        return run

    def _keep(self) -> Comparison:
        heats = tuple(Heat(candidates=tuple(candidates)) for candidates in self.heats)
        found = {"contenders": tuple(self.contenders), "heats": heats}
        comparison = self.fresh.model_copy(update=found)
        write_document(self.path, comparison)
        return comparison
