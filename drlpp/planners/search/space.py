"""What of a method may vary with the placement, and the steps from one method to the next."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import product
from typing import Any

from pydantic import ValidationError

from drlpp.errors import InvalidInput
from drlpp.schedule.kinds.alternating import ONE_F_ONE_B
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.per_stage import collapsed, most, refuse_lists

MOST_PER_LINK = 4
"""The most minibatches in flight beyond NOAM that a link may have.

Two neighbouring stages with d and d′ in flight pass each other d − d′ + 1 of them in the time of a
round trip: forward and backward of both, and a message each way. With NOAM these are two. If the
messages take the time T of the slowest stage each, the round trip takes up to 4 T, and four are
needed to keep every part busy; more only where latency is longer than the slowest stage.
"""

_MOST_MICROBATCHES = 64


class Vary(StrEnum):
    """What may be chosen with the placement."""

    DEPTH = "depth"
    MICROBATCHES = "microbatches"
    RECOMPUTE = "recompute"
    SCHEDULE = "schedule"


_ONE_OF_SEVERAL = 0.5
"""The share of steps of depth or recomputation that change one link or stage, not all of them."""

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


def usually_varied(
    method: Method, fixed: Collection[str], objective: str, kinds: Iterable[str] = ()
) -> frozenset[Vary] | None:
    """Return what may be chosen where nothing is said but the ``fixed`` options of a method.

    That is as in :class:`Space`; to a loss microbatches, too, which make weights less late, but not
    where ``kinds`` of operators normalise batches: each microbatch would be one.
    """
    free = {what for what in (Vary.DEPTH, Vary.MICROBATCHES) if _FIELDS[what] not in fixed}
    if "batch_norm" in kinds:
        free -= {Vary.MICROBATCHES}
    if objective != "loss":
        return None if Vary.DEPTH in free else frozenset()
    return frozenset(free - {Vary.DEPTH} if method.flushes else free)


@dataclass(frozen=True)
class Space:
    """The methods that a search may choose from.

    Depth may differ from link to link, and recomputation from stage to stage, wherever they vary.

    Attributes:
        method: that the user asked for; what does not vary stays as it is here.
        vary: what may be chosen. None is the in-flight depth where the schedule has one: it changes
            no result but by staleness, and costs nothing but memory.
        most_staleness: the largest s of a stage that is allowed; None for any.
        batch_size: of a minibatch, which microbatches divide evenly; None if it is not known.

    Raises:
        InvalidInput: something is to vary that the schedule does not have, or the method has a list
            for one number of stages.
    """

    method: Method
    vary: frozenset[Vary] | None = None
    most_staleness: int | None = None
    batch_size: int | None = None

    def __post_init__(self) -> None:
        refuse_lists(self.method.in_flight_per_link, self.method.recompute)
        kind, vary = self.method.schedule_kind, self.vary or ()
        if Vary.DEPTH in vary and kind.flushes:
            raise InvalidInput(
                f"schedule {kind.name} empties the pipeline before every update and has no "
                f"in-flight depth to vary; leave it out, or use {ONE_F_ONE_B.name}"
            )
        if Vary.SCHEDULE in vary and not kind.flushes:
            raise InvalidInput(
                f"schedule {kind.name} has staleness, which no other kind has: schedules vary "
                "where there is to be none; use --policy sync, or leave it out"
            )

    @cached_property
    def methods(self) -> tuple[Method, ...]:
        """All that fit together and are for any number of stages, the given one first."""
        names = [_FIELDS[what] for what in self._values]
        found = {self.method: None}
        for values in product(*self._values.values()):
            changes = dict(zip(names, values, strict=True))
            # Some do not fit together, such as half precision without recomputation.
            with suppress(ValidationError):
                found[Method.model_validate({**self.method.model_dump(), **changes})] = None
        return tuple(found)

    @cached_property
    def _known(self) -> frozenset[Method]:
        return frozenset(self.methods)

    @cached_property
    def _values(self) -> dict[Vary, tuple[Any, ...]]:
        return {what: tuple(self._values_of(what)) for what in Vary if what in self.varying}

    @property
    def varying(self) -> frozenset[Vary]:
        """What may be chosen."""
        if self.vary is None:
            return frozenset(() if self.method.flushes else {Vary.DEPTH})
        return self.vary

    @property
    def varies(self) -> bool:
        """Whether there is more to choose than the placement."""
        return len(self.methods) > 1

    @property
    def deepens(self) -> bool:
        """Whether the in-flight depth may be chosen."""
        depth = self.method.in_flight_per_link
        return any(method.in_flight_per_link != depth for method in self.methods)

    def has(self, method: Method) -> bool:
        """Return whether a method may be chosen: every stage by itself is as in one of these."""
        if not method.has_lists:
            return method in self._known
        names = (_FIELDS[Vary.DEPTH], _FIELDS[Vary.RECOMPUTE])
        given = (getattr(method, name) for name in names)
        each = [one if isinstance(one, tuple) else (one,) for one in given]
        return all(
            method.model_copy(update=dict(zip(names, values, strict=True))) in self._known
            for values in product(*map(set, each))
        )

    def changed(self, method: Method, stages: int, draw: random.Random) -> Method:
        """Return a method one step away: one more or less in flight, twice or half the parts, ….

        What stages or links have of their own changes for one of them or for all. It is the same if
        the step leads out of the space.

        Args:
            method: of the space, for so many ``stages``.
            stages: that it runs.
            draw: of the step.
        """
        what = draw.choice(list(self._values))
        values, given = self._values[what], getattr(method, _FIELDS[what])
        step = draw.choice((-1, 1))

        def stepped(value: Any) -> Any:
            return values[min(max(values.index(value) + step, 0), len(values) - 1)]

        if what is Vary.SCHEDULE:
            value = draw.choice(values)
        elif what is Vary.MICROBATCHES:
            value = stepped(given)
        else:
            count = stages if what is Vary.RECOMPUTE else stages - 1
            each = list(given) if isinstance(given, tuple) else [given] * max(count, 1)
            if draw.random() < _ONE_OF_SEVERAL:
                chosen = draw.randrange(len(each))
                each[chosen] = stepped(each[chosen])
            else:
                each = list(map(stepped, each))
            value = collapsed(each)
        found = method.model_copy(update={_FIELDS[what]: value})
        return found if self.has(found) else method

    def _values_of(self, what: Vary) -> Sequence[Any]:
        method = self.method
        if what is Vary.DEPTH:
            return sorted({*range(MOST_PER_LINK + 1), most(method.in_flight_per_link)})
        if what is Vary.MICROBATCHES:
            return sorted(self._numbers_of_microbatches(method.microbatches))
        if what is Vary.RECOMPUTE:
            return [False, True]
        kinds = [kind for kind in SCHEDULE_KINDS.values() if kind.trains and kind.flushes]
        return [kind.name for kind in kinds]

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
