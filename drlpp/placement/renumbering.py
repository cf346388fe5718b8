"""Some accelerators of a cluster as a cluster of their own, numbered anew from 0."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from drlpp.io.formatting import ranges_of
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Measurement, Outcome

_LONGEST_NAME = 60

_AnyOutcome = TypeVar("_AnyOutcome", bound=Outcome)


@dataclass(frozen=True)
class Renumbering:
    """What accelerators of a cluster are called in a part of it, and back.

    Attributes:
        numbers: in the cluster, of accelerators 0, 1, … of the part.
        of: how many accelerators the cluster has.
    """

    numbers: tuple[int, ...]
    of: int

    @classmethod
    def none(cls, accelerators: int) -> Renumbering:
        """Return that of a whole cluster, which changes nothing."""
        return cls(tuple(range(accelerators)), accelerators)

    @property
    def name(self) -> str:
        """What the part is called in names of files: short, and another for every part and order.

        Numbers that follow each other are a range, such as ``0-6.8-15``; where that gets long, it
        is how many there are, and a hash.
        """
        ranges = ranges_of(self.numbers)
        text = ".".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
        if len(text) <= _LONGEST_NAME:
            return text
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        return f"{len(self.numbers)}-of-{self.of}-{digest}"

    @cached_property
    def _in_part(self) -> dict[int, int]:
        return {number: own for own, number in enumerate(self.numbers)}

    def in_part(self, candidate: Candidate) -> Candidate | None:
        """Return a candidate of the cluster as one of the part; None if it needs others."""
        if not self._in_part.keys() >= set(candidate.placement.accelerators):
            return None
        return self._on(candidate, self._in_part)

    def in_cluster(self, candidate: Candidate) -> Candidate:
        """Return a candidate of the part as one of the cluster."""
        return self._on(candidate, dict(enumerate(self.numbers)))

    def measured_in_part(self, outcome: _AnyOutcome) -> _AnyOutcome:
        """Return what was measured in the cluster, on accelerators of the part only."""
        return _measured_on(outcome, self._in_part)

    def measured_in_cluster(self, outcome: _AnyOutcome) -> _AnyOutcome:
        """Return what was measured in the part."""
        return _measured_on(outcome, dict(enumerate(self.numbers)))

    def _on(self, candidate: Candidate, called: Mapping[int, int]) -> Candidate:
        if self == Renumbering.none(self.of):
            return candidate
        placement = candidate.placement
        # Replicas are equals, in the order of their numbers.
        stages = tuple(
            stage.model_copy(
                update={"accelerators": tuple(sorted(called[a] for a in stage.accelerators))}
            )
            for stage in placement.stages
        )
        return replace(candidate, placement=placement.model_copy(update={"stages": stages}))


def numbers_by_name(names: Iterable[str]) -> dict[str, list[int]]:
    """Return the places at which every name stands, such as the accelerators of every host."""
    found: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        found.setdefault(name, []).append(number)
    return found


def _measured_on(outcome: _AnyOutcome, called: Mapping[int, int]) -> _AnyOutcome:
    if not isinstance(outcome, Measurement):
        return outcome

    def on(worker: int) -> int:
        # A file that somebody has edited may name any.
        return called.get(worker, worker)

    workers = tuple(w.model_copy(update={"worker": on(w.worker)}) for w in outcome.workers)
    links = tuple(
        link.model_copy(update={"sender": on(link.sender), "receiver": on(link.receiver)})
        for link in outcome.links
    )
    return outcome.model_copy(update={"workers": workers, "links": links})
