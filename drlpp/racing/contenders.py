"""What takes part in a race: a placement and its method, or plain PyTorch; and the heats."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Self

from pydantic import Field, model_validator

from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome, median_measurement
from drlpp.placement.placement import Placement
from drlpp.racing.rivals import RIVALS, Alone, Found
from drlpp.racing.verdict import Entrant, Simplicity
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B, ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC
from drlpp.specs.optimizer_spec import OptimizerSpec

YOURS = "your layout"
"""What a user's own layouts begin with, which are rivals as well."""


class Contender(Record):
    """What is measured or trained, how it runs, and what found it.

    Attributes:
        found_by: an agent, one of :data:`~drlpp.racing.rivals.RIVALS`, or a layout of the user's
            (:data:`YOURS`); several are joined by commas.
        placement: None for plain PyTorch.
        method: how it runs.
        threads: of plain PyTorch; None where it computes on a GPU.
        measurements: one for each round so far.
        failure: why the last one failed.
        optimizer: its own, in files of races that compared optimizers; None for the race's.
    """

    found_by: str
    placement: Placement | None = None
    method: Method
    threads: int | None = None
    measurements: tuple[Measurement, ...] = ()
    failure: str | None = None
    optimizer: OptimizerSpec | None = None

    @classmethod
    def of(cls, found: Found, found_by: str, method: Method | None = None) -> Self:
        """Make a contender, not measured yet; plain PyTorch takes what it has of ``method``."""
        if isinstance(found, Alone):
            return cls(found_by=found_by, method=method or Method(), threads=found.threads)
        return cls(found_by=found_by, placement=found.placement, method=found.method)

    @property
    def candidate(self) -> Candidate | None:
        """What runs on the workers; None for plain PyTorch."""
        return None if self.placement is None else Candidate(self.placement, self.method)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.threads is not None and self.placement is not None:
            raise ValueError(f"a placement has workers, not {self.threads} threads")
        return self

    @property
    def configuration(self) -> str:
        """Replicas per stage and microbatches, or the threads of plain PyTorch; its optimizer."""
        own = f", {self.optimizer.name}" if self.optimizer else ""
        if self.placement is None:
            count = self.threads
            if count is None:
                return f"one GPU{own}"
            return f"{count} thread{'s' * (count > 1)}{own}"
        if not self.method.flushes and self.method.microbatches == 1:
            return f"{self.placement.configuration}{own}"
        return f"{self.placement.configuration}, M = {self.method.microbatches}{own}"

    def beside(self, usual: Method) -> str:
        """Return the same, and what of schedule, depth and recomputation is not as usual.

        A rival that is called as its schedule need not say it twice.
        """
        if self.placement is None:
            return self.configuration
        differences = self.method.unlike(usual, len(self.placement.stages))
        return ", ".join([self.configuration, *(d for d in differences if d != self.found_by)])

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds per minibatch of every round so far; none if it failed."""
        return () if self.failure else tuple(m.seconds_per_minibatch for m in self.measurements)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that found it."""
        return tuple(self.found_by.split(", "))

    @property
    def is_rival(self) -> bool:
        """Whether a user has it without an agent."""
        return any(map(_is_rival, self.names))

    @property
    def key(self) -> Hashable:
        """A key that is equal for contenders that run and train alike."""
        candidate = self.candidate
        return as_it_runs(candidate) if candidate else (self.threads, self.method)

    @property
    def minibatches_of_update(self) -> tuple[int, int]:
        """The fewest and the most minibatches that make one update of a stage."""
        if self.placement is None:
            return self.method.accumulate, self.method.accumulate
        found = [
            self.method.minibatches_of_update(len(stage.accelerators))
            for stage in self.placement.stages
        ]
        return min(found), max(found)

    def entrant(self, configuration: str, costs: Sequence[float]) -> Entrant:
        """Return what a verdict is about: this with what it cost in every round."""
        rivals = [_is_rival(name) for name in self.names]
        return Entrant(
            found_by=self.names,
            configuration=configuration,
            rival=any(rivals),
            learned=not all(rivals),
            today=any(name in RIVALS and RIVALS[name].today for name in self.names),
            simplicity=self._simplicity,
            costs=tuple(costs),
        )

    @property
    def _simplicity(self) -> Simplicity:
        if self.placement is None:
            return Simplicity(pipeline=False)
        stages = len(self.placement.stages)
        return Simplicity(
            pipeline=True,
            stages=stages,
            stale=stages > 1 and not self.method.flushes,
            workers=len(self.placement.accelerators),
            microbatches=self.method.microbatches,
        )

    @property
    def median_measurement(self) -> Measurement | None:
        """The measurement in the middle by its seconds; None without any."""
        return median_measurement(self.measurements) if self.measurements else None

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of all rounds so far."""
        if self.failure is None:
            return self.measurements
        return (*self.measurements, FailedMeasurement(failure="failed", reason=self.failure))

    def with_outcome(self, outcome: Outcome) -> Contender:
        """Return a copy with one more outcome."""
        if isinstance(outcome, FailedMeasurement):
            return self.model_copy(update={"failure": outcome.reason})
        return self.model_copy(update={"measurements": (*self.measurements, outcome)})

    @property
    def unmeasured(self) -> Contender:
        """A copy as it was before any round."""
        return self.model_copy(update={"measurements": (), "failure": None})


def _is_rival(name: str) -> bool:
    return name in RIVALS or name.startswith(YOURS)


def as_it_runs(candidate: Candidate) -> Candidate:
    """Return the same candidate for all that perform the same actions with the same weights.

    On one stage nothing comes between a forward and its backward: flushed 1F1B is 1F1B there, if
    both update after as many minibatches, and most weight policies are synchronous.
    """
    candidate = candidate.canonical
    placement, method = candidate.placement, candidate.method
    if len(placement.stages) > 1:
        return candidate
    facts, kind = method.policy_facts, method.schedule
    replicas = len(placement.stages[0].accelerators)
    alike = ONE_F_ONE_B.minibatches_of_update(replicas, method.accumulate, method.microbatches)
    if kind == FLUSHED_1F1B.name and alike == method.accumulate:
        kind = ONE_F_ONE_B.name
    if kind != ONE_F_ONE_B.name or facts.own_options is not None or facts.updates_all_in_flight:
        return candidate
    changes = {"schedule": kind, "policy": SYNC.name, "in_flight_per_link": 0}
    return Candidate(placement, method.model_copy(update=changes))


def update_text(contender: Contender) -> str:
    """Return how many minibatches make an update: of stages, the fewest and the most."""
    least, most = contender.minibatches_of_update
    return str(most) if least == most else f"{least}–{most}"


def without_equals(contenders: Iterable[Contender]) -> list[Contender]:
    """Return each once, by the names of all that found it, agents first."""
    found: dict[Hashable, list[Contender]] = {}
    for contender in contenders:
        found.setdefault(contender.key, []).append(contender)
    return list(map(named_together, found.values()))


def named_together(alike: Sequence[Contender]) -> Contender:
    """Return the first of contenders that run alike, by the names of all, agents first."""
    agents_first = sorted(alike, key=lambda one: one.is_rival)
    names = dict.fromkeys(name for one in agents_first for name in one.names)
    return alike[0].model_copy(update={"found_by": ", ".join(names)})


def usual_method(contenders: Iterable[Contender]) -> Method:
    """Return the method that was asked for, which plain PyTorch has too; without it the default."""
    return next((c.method for c in contenders if c.placement is None), Method())


def names_of(contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Return what charts call contenders, in their order; no two have the same name."""
    names: dict[str, None] = {}
    method = usual_method(contenders)
    for contender in contenders:
        name = usual = f"{contender.found_by} · {contender.beside(method)}"
        number = 1
        while name in names:
            number += 1
            name = f"{usual} ({number})"
        names[name] = None
    return tuple(names)


class Heat(Record):
    """Candidates of one kind, of which the best enters the race; there is one at least.

    ``best`` is its number, None until the heat is over.
    """

    candidates: tuple[Contender, ...] = Field(min_length=1)
    best: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _best_is_a_candidate(self) -> Self:
        if self.best is not None and self.best >= len(self.candidates):
            raise ValueError(f"best is {self.best} of {len(self.candidates)} candidates")
        return self

    @property
    def kind(self) -> str:
        """The kind of all candidates."""
        return self.candidates[0].found_by

    @property
    def unmeasured(self) -> Heat:
        """A copy as it was before the first measurement."""
        return Heat(candidates=tuple(c.unmeasured for c in self.candidates))

    def with_outcome(self, index: int, outcome: Outcome) -> Heat:
        """Return a copy with one more outcome of a candidate."""
        candidates = list(self.candidates)
        candidates[index] = candidates[index].with_outcome(outcome)
        return self.model_copy(update={"candidates": tuple(candidates)})

    @property
    def entrant(self) -> Contender:
        """The best as it enters the race, in which only its measurements of the race count."""
        assert self.best is not None
        return self.candidates[self.best].model_copy(update={"measurements": ()})
