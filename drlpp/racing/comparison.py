"""Races by time per minibatch: the file of what was measured side by side, and measuring it."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import ClassVar

from drlpp.io.documents import Document, read_document, write_document
from drlpp.io.quantities import Count, Speed
from drlpp.racing.contenders import Contender, compiled_as_plain, usual_method
from drlpp.racing.race import LEAST_ROUNDS, LONG, cost_of, race
from drlpp.racing.rivals import measure, without_equals
from drlpp.racing.verdict import Verdict, judge
from drlpp.runtime.session.session import ClusterSession
from drlpp.specs.cluster import Cluster

_HOPELESS = 1.5
"""What costs this many times as much as the best of the heats is not compiled for the race."""

_GAIN = 2.0
"""So many times as fast is what compiling makes a contender at most, roughly."""


class Comparison(Document):
    """What was measured side by side, of one model on the same workers.

    Attributes:
        model: its name.
        minibatches: of a measurement in the race, unless it is a long one.
        contenders: of the race, each once by the names of all that found it.
        rivals: what qualified in heats, with what these have measured.
        speeds: of every worker, if they emulated accelerators; plain PyTorch had the fastest.
    """

    kind: ClassVar[str] = "comparison"

    model: str
    minibatches: Count
    contenders: tuple[Contender, ...] = ()
    rivals: tuple[Contender, ...] = ()
    speeds: tuple[Speed, ...] = ()

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the race; None if nothing could be measured."""
        costs, usual = [one.costs for one in self.contenders], usual_method(self.contenders)
        done = "reaches a loss" if self.weighs_samples else "trains a minibatch"
        return judge(self.contenders, costs, usual, done)

    @property
    def weighs_samples(self) -> bool:
        """Whether seconds count times the samples that late weights need."""
        return any(one.samples != 1.0 for one in self.contenders)


def compare(
    session: ClusterSession,
    contenders: Sequence[Contender],
    choose_rivals: Callable[[], Sequence[Contender]],
    *,
    cluster: Cluster,
    rounds: int,
    minibatches: int,
    path: Path,
    on_progress: Callable[[str], None] = lambda done: None,
) -> Comparison:
    """Race the contenders and rivals against each other (:func:`drlpp.racing.race.race`).

    If plain PyTorch is best compiled, all but hopeless ones are compiled. Contenders that run the
    same are measured once for all of them. Every measurement is written to ``path`` at once; the
    rivals that are there are not chosen again, and what it holds of these very contenders is not
    measured again.

    Args:
        session: the workers.
        contenders: in the order of the first round.
        choose_rivals: returns the best of each kind (:func:`drlpp.racing.rivals.rivals`).
        cluster: that says which accelerators do not differ.
        rounds: the most that the race has.
        minibatches: of a measurement in the race, unless it is a long one.
        path: the file.
        on_progress: called after a round with how far it is.

    Raises:
        HostLost: a host cannot be reached any more; what was measured is in the file.
    """
    comparison = Comparison(
        model=str(session.captured.reference),
        minibatches=minibatches,
        speeds=session.speeds if min(session.speeds) < 1 else (),
    )
    known = read_document(path, Comparison) if path.exists() else comparison
    if known.model_copy(update={"contenders": (), "rivals": ()}) != comparison:
        known = comparison
    rivals = known.rivals or tuple(choose_rivals())
    # In the race only its measurements of the race count.
    everyone = [*contenders, *(rival.unmeasured for rival in rivals)]
    alike = without_equals(compiled_as_plain(everyone, _hopeless(rivals)), cluster)
    group = sorted(alike, key=lambda one: not one.is_judged)
    if [one.key for one in group] == [one.key for one in known.contenders]:
        for number, one in enumerate(known.contenders):
            measured = {"measurements": one.measurements, "failure": one.failure}
            group[number] = group[number].model_copy(update=measured)
    outcomes = [iter(one.outcomes) for one in group]

    def keep() -> Comparison:
        found = comparison.model_copy(update={"contenders": tuple(group), "rivals": rivals})
        write_document(path, found)
        return found

    def run(index: int, long: bool = False) -> float | None:
        if (outcome := next(outcomes[index], None)) is None:
            outcome = measure(session, group[index], minibatches * (LONG if long else 1))
            group[index] = group[index].with_outcome(outcome)
            keep()
        return cost_of(outcome, group[index].samples or 1.0)

    def on_round(done: int, running: int) -> None:
        on_progress(f"racing: round {done} of at most {rounds}, {running} candidates left")

    keep()
    judged = sum(one.is_judged for one in group)
    race(judged, run, rounds, on_round)
    for number in range(judged, len(group)):
        on_progress(f"measuring {group[number].found_by}, which is not in the race")
        all(run(number) is not None for _ in range(LEAST_ROUNDS))
    return keep()


def _hopeless(rivals: Sequence[Contender]) -> set[Hashable]:
    """Return the keys of what heats have shown to cost far more than others, as they are."""
    medians = {
        one.key: statistics.median(one.costs) * (_GAIN if one.method.compiled else 1.0)
        for one in rivals
        if one.costs
    }
    limit = _HOPELESS * min(medians.values(), default=0.0)
    return {key for key, cost in medians.items() if cost > limit}
