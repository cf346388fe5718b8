"""The file of what was measured side by side."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import ClassVar

from drlpp.comparison.contenders import Contender, Heat, named_together, update_text, usual_method
from drlpp.comparison.verdict import Entrant, Verdict, judge
from drlpp.io.documents import Document
from drlpp.io.quantities import Count, Speed
from drlpp.placement.measurement import Outcome
from drlpp.schedule.method import Method


class Comparison(Document):
    """What was measured side by side, of one model on the same workers.

    Attributes:
        model: its name.
        minibatches: of a measurement in the race, unless it is a long one.
        contenders: of the race; those that qualified in a heat are the last.
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

    @property
    def alike(self) -> tuple[tuple[int, ...], ...]:
        """The contenders by index, together where they run the same."""
        found: dict[Hashable, list[int]] = {}
        for index, contender in enumerate(self.contenders):
            found.setdefault(contender.key, []).append(index)
        return tuple(map(tuple, found.values()))

    @property
    def usual_method(self) -> Method:
        """What descriptions leave out: the method that was asked for."""
        waiting = (candidate for heat in self.heats for candidate in heat.candidates)
        return usual_method((*self.contenders, *waiting))

    @property
    def distinct(self) -> tuple[Contender, ...]:
        """One contender for all that are alike, by the names of all that found it, agents first."""
        return tuple(
            named_together([self.contenders[index] for index in indices]) for indices in self.alike
        )

    @property
    def entrants(self) -> tuple[Entrant, ...]:
        """What a verdict is about; numbers are those of :attr:`distinct`."""
        usual = self.usual_method
        return tuple(one.entrant(_told(one, usual), one.seconds) for one in self.distinct)

    @property
    def verdict(self) -> Verdict | None:
        """The verdict of the race; None if nothing could be measured."""
        return judge(self.entrants)

    def with_outcome(self, indices: Sequence[int], outcome: Outcome) -> Comparison:
        """Return a copy with one more outcome of contenders that are alike."""
        contenders = list(self.contenders)
        for index in indices:
            contenders[index] = contenders[index].with_outcome(outcome)
        return self.model_copy(update={"contenders": tuple(contenders)})

    def with_heat(self, number: int, changed: Heat) -> Comparison:
        """Return a copy with another state of a heat.

        When all heats are over, their best join the contenders.
        """
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
        """A copy as it was before the first measurement."""
        count = len(self.contenders) - len(self.heats) * self.qualified
        return self.model_copy(
            update={
                "contenders": tuple(c.unmeasured for c in self.contenders[:count]),
                "heats": tuple(heat.unmeasured for heat in self.heats),
            }
        )


def _told(one: Contender, usual: Method) -> str:
    several = one.minibatches_of_update[1] > usual.accumulate
    every = f", updates every {update_text(one)} minibatches" if several else ""
    return f"{one.beside(usual)}{every}"
