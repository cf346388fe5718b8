"""What takes part in a race: a placement and its method, or plain PyTorch; and the heats."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Self

from pydantic import ConfigDict, Field

from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B, ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC


class Contender(Record):
    """What is measured or trained, how it runs, and what found it.

    Attributes:
        found_by: an agent, one of :data:`~drlpp.racing.rivals.RIVALS`, or a layout of the user's;
            several are joined by commas.
        placement: None for plain PyTorch.
        method: how it runs.
        threads: of plain PyTorch; None where it computes on a GPU.
        measurements: one for each round so far.
        failure: why the last one failed.
    """

    found_by: str
    placement: Placement | None = None
    method: Method
    threads: int | None = None
    measurements: tuple[Measurement, ...] = ()
    failure: str | None = None

    @classmethod
    def of(cls, candidate: Candidate, found_by: str) -> Self:
        """Make a contender, not measured yet."""
        return cls(found_by=found_by, placement=candidate.placement, method=candidate.method)

    @property
    def candidate(self) -> Candidate | None:
        """What runs on the workers; None for plain PyTorch."""
        return None if self.placement is None else Candidate(self.placement, self.method)

    @property
    def configuration(self) -> str:
        """Replicas per stage and microbatches, or the threads of plain PyTorch."""
        if self.placement is None:
            count = self.threads
            return "one GPU" if count is None else f"{count} thread{'s' * (count > 1)}"
        if not self.method.flushes and self.method.microbatches == 1:
            return self.placement.configuration
        return f"{self.placement.configuration}, M = {self.method.microbatches}"

    def beside(self, usual: Method) -> str:
        """Return the same, what of the method is not as usual, and whether it is compiled.

        What takes several minibatches for one update is not as good as what takes as long with one.
        A rival that is called as its schedule need not say it twice.
        """
        compiled = ["compiled"] * self.method.compiled
        if self.placement is None:
            return ", ".join([self.configuration, *compiled])
        unlike = self.method.unlike(usual, len(self.placement.stages))
        told = [self.configuration, *unlike, *compiled]
        stages = self.placement.stages
        updates = [self.method.minibatches_of_update(len(stage.accelerators)) for stage in stages]
        if max(updates) > usual.accumulate:
            between = "–".join(map(str, sorted({min(updates), max(updates)})))
            told.append(f"updates every {between} minibatches")
        return ", ".join(one for one in told if one != self.found_by)

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds per minibatch of every round so far; none if it failed."""
        return () if self.failure else tuple(m.seconds_per_minibatch for m in self.measurements)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that found it."""
        return tuple(self.found_by.split(", "))

    @property
    def key(self) -> Hashable:
        """A key that is equal for contenders that run and train alike."""
        candidate = self.candidate
        return as_it_runs(candidate) if candidate else (self.threads, self.method)

    @property
    def simplicity(self) -> tuple[bool, int, bool, int, int]:
        """How simple it is to train that way: the least is the simplest, the first field decides.

        Whether it needs this project at all, stages, whether passes use weights that updates have
        changed meanwhile, workers that hold a stage, and microbatches.
        """
        if self.placement is None:
            return False, 1, False, 1, 1
        stages, workers = len(self.placement.stages), len(self.placement.accelerators)
        stale = stages > 1 and not self.method.flushes
        return True, stages, stale, workers, self.method.microbatches

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
    if kind != ONE_F_ONE_B.name or facts.own_options or facts.updates_all_in_flight:
        return candidate
    changes = {"schedule": kind, "policy": SYNC.name, "in_flight_per_link": 0}
    return Candidate(placement, method.model_copy(update=changes))


def usual_method(contenders: Iterable[Contender]) -> Method:
    """Return the method that was asked for, which plain PyTorch has too; without it the default."""
    return next((c.method for c in contenders if c.placement is None), Method())


def compiled_as_plain(contenders: Sequence[Contender]) -> list[Contender]:
    """Return all compiled if plain PyTorch is, which is the better of both: so they gain as well.

    What cannot be compiled stays as it is.
    """
    if not any(one.placement is None and one.method.compiled for one in contenders):
        return list(contenders)
    return [
        one
        if one.method.schedule_kind.splits_backward
        else one.model_copy(update={"method": one.method.model_copy(update={"compiled": True})})
        for one in contenders
    ]


def names_of(contenders: Sequence[Contender]) -> tuple[str, ...]:
    """Return what charts call contenders, in their order; no two have the same name."""
    usual = usual_method(contenders)
    names = [f"{one.found_by} · {one.beside(usual)}" for one in contenders]
    before = [names[:place].count(name) for place, name in enumerate(names)]
    return tuple(
        f"{name} ({count + 1})" if count else name
        for name, count in zip(names, before, strict=True)
    )


class Heat(Record):
    """Candidates of one kind, of which the best enters the race; there is one at least."""

    # Older files told the number of the best.
    model_config = ConfigDict(extra="ignore")

    candidates: tuple[Contender, ...] = Field(min_length=1)

    @property
    def kind(self) -> str:
        """The kind of all candidates."""
        return self.candidates[0].found_by
