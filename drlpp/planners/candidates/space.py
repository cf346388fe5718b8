"""What of a method may vary with the placement, and the steps from one method to the next."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import product

from pydantic import ValidationError

from drlpp.errors import InvalidInput
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS, names_to_suggest
from drlpp.schedule.method import Method
from drlpp.simulator import MOST_PER_LINK

_MOST_MICROBATCHES = 64


class Vary(StrEnum):
    """What may be chosen with the placement."""

    DEPTH = "depth"
    MICROBATCHES = "microbatches"
    RECOMPUTE = "recompute"
    SCHEDULE = "schedule"


_FIELDS = {
    Vary.DEPTH: "in_flight_per_link",
    Vary.MICROBATCHES: "microbatches",
    Vary.RECOMPUTE: "recompute",
    Vary.SCHEDULE: "schedule",
}


def read_vary(text: str) -> frozenset[Vary]:
    """Read a list such as ``depth,recompute``; ``none`` or nothing is the placement alone.

    Raises:
        InvalidInput: for a word that is none of these.
    """
    words = [word.strip() for word in text.split(",") if word.strip() not in ("", "none")]
    for word in words:
        if word not in list(Vary):
            raise InvalidInput(
                f"--vary {word!r} is unknown; there are {', '.join(Vary)}, and none for the "
                "placement alone"
            )
    return frozenset(map(Vary, words))


@dataclass(frozen=True)
class Space:
    """The methods that a search may choose from.

    Attributes:
        method: that the user asked for; what does not vary stays as it is here.
        vary: what may be chosen. None is the in-flight depth where the schedule has one: it changes
            no result but by staleness, and costs nothing but memory.
        most_staleness: the largest s of a stage that is allowed; None for any.
        batch_size: of a minibatch, which microbatches divide evenly; None if it is not known.
        methods: all that fit together, the given one first.

    Raises:
        InvalidInput: something is to vary that the schedule does not have.
    """

    method: Method
    vary: frozenset[Vary] | None = None
    most_staleness: int | None = None
    batch_size: int | None = None
    methods: tuple[Method, ...] = field(init=False)
    _values: dict[Vary, tuple[object, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        kind = self.method.schedule_kind
        vary = self.vary
        if vary is None:
            usual = {Vary.DEPTH} if kind.takes_in_flight_per_link else set()
            vary = frozenset(usual)
        elif Vary.DEPTH in vary and not kind.takes_in_flight_per_link:
            able = names_to_suggest(lambda kind: kind.takes_in_flight_per_link)
            raise InvalidInput(
                f"schedule {kind.name} {kind.reason_of_depth} and has no in-flight depth to vary; "
                f"leave it out, or use {able}"
            )
        if Vary.SCHEDULE in vary and not kind.flushes:
            raise InvalidInput(
                f"schedule {kind.name} has staleness, which no other kind has: schedules vary "
                "where there is to be none; use --policy sync, or leave it out"
            )
        if Vary.MICROBATCHES in vary and not kind.takes_microbatches:
            able = names_to_suggest(lambda kind: kind.takes_microbatches)
            raise InvalidInput(f"schedule {kind.name} has no microbatches to vary; use {able}")
        values = {what: tuple(self._values_of(what)) for what in Vary if what in vary}
        object.__setattr__(self, "_values", values)
        object.__setattr__(self, "methods", tuple(self._all()))

    @property
    def varies(self) -> bool:
        """Whether there is more to choose than the placement."""
        return len(self.methods) > 1

    def changed(self, method: Method, draw: random.Random) -> Method:
        """Return a method one step away: one more or less in flight, twice or half the parts, ….

        It is the same if the step leads out of the space.
        """
        what = draw.choice(list(self._values))
        values, name = self._values[what], _FIELDS[what]
        index = values.index(getattr(method, name))
        if what is Vary.SCHEDULE:
            index = draw.randrange(len(values))
        else:
            index = min(max(index + draw.choice((-1, 1)), 0), len(values) - 1)
        found = method.model_copy(update={name: values[index]})
        return found if found in self.methods else method

    def _values_of(self, what: Vary) -> Sequence[object]:
        method = self.method
        if what is Vary.DEPTH:
            return sorted({*range(MOST_PER_LINK + 1), method.in_flight_per_link})
        if what is Vary.MICROBATCHES:
            return sorted(self._numbers_of_microbatches(method.microbatches))
        if what is Vary.RECOMPUTE:
            return [False, True]
        return [kind.name for kind in SCHEDULE_KINDS.values() if kind.trains and kind.flushes]

    def _numbers_of_microbatches(self, asked: int) -> set[int]:
        """Return the number that was asked for, halved and doubled again and again."""
        found, least = {asked}, asked
        while least % 2 == 0:
            least //= 2
            found.add(least)
        number, most = asked * 2, min(self.batch_size or _MOST_MICROBATCHES, _MOST_MICROBATCHES)
        while number <= most and (self.batch_size or number) % number == 0:
            found.add(number)
            number *= 2
        return found

    def _all(self) -> list[Method]:
        names = [_FIELDS[what] for what in self._values]
        found = [self.method]
        for values in product(*self._values.values()):
            changes = dict(zip(names, values, strict=True))
            try:
                method = Method.model_validate({**self.method.model_dump(), **changes})
            except ValidationError:
                # They do not fit together, such as half precision without recomputation.
                continue
            if method not in found:
                found.append(method)
        return found
