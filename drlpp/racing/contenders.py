"""What takes part in a race: a placement and its method, or what torch does."""

from __future__ import annotations

from collections.abc import Container, Hashable, Iterable, Sequence
from typing import Literal, Self

from drlpp.costs.ways_of_training import WAYS
from drlpp.io.documents import Record
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome
from drlpp.placement.placement import Placement
from drlpp.runtime.ipc.protocol import ParallelWay
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B, ONE_F_ONE_B
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC

_COMPILED = 1.03
"""What is compiled has to be so many times as fast."""


class Contender(Record):
    """What is measured or trained, how it runs, and what found it.

    Attributes:
        found_by: an agent, one of :data:`~drlpp.racing.rivals.RIVALS`, or a layout of the user's;
            several are joined by commas.
        placement: None for plain PyTorch, and torch's own data parallelism.
        method: how it runs.
        way: which of these it is, if it has no placement.
        processes: of data parallelism, on the fastest workers.
        every: so many updates its weights are averaged, if only then.
        threads: of plain PyTorch; None where it computes on a GPU.
        passes: of plain PyTorch for a minibatch: with more than one, gradients accumulate.
        samples: that late weights need to a loss, for each of plain PyTorch's, where a race weighs
            them; 0 if that is not known, since updates are others.
        measurements: one for each round so far.
        failure: why the last one failed.
    """

    found_by: str
    placement: Placement | None = None
    method: Method
    way: Literal["plain"] | ParallelWay = "plain"
    processes: int = 1
    every: int = 1
    threads: int | None = None
    passes: int = 1
    samples: float = 1.0
    measurements: tuple[Measurement, ...] = ()
    failure: str | None = None

    @classmethod
    def of(cls, candidate: Candidate, found_by: str) -> Self:
        """Make a contender, not measured yet."""
        return cls(found_by=found_by, placement=candidate.placement, method=candidate.method)

    @property
    def candidate(self) -> Candidate | None:
        """What runs on the workers; None without a placement."""
        return None if self.placement is None else Candidate(self.placement, self.method)

    @property
    def is_plain(self) -> bool:
        """Whether it is plain PyTorch."""
        return self.placement is None and self.way == "plain"

    @property
    def approximates(self) -> bool:
        """Whether torch makes other updates than plain PyTorch's: only a loss tells how good."""
        return self.placement is None and WAYS[self.way].approximates

    @property
    def is_usual(self) -> bool:
        """Whether it is what others have to beat: torch, with plain PyTorch's updates."""
        return self.placement is None and not self.approximates

    @property
    def handicap(self) -> float:
        """What its costs count in a heat: compiling has to pay for the seconds that it takes."""
        return _COMPILED if self.method.compiled else 1.0

    @property
    def as_torch_has_it(self) -> str:
        """What to use instead of this project, where there is no placement."""
        there = WAYS[self.way].torch
        return there if self.is_plain else f"torch's {there} on {self.processes} accelerators"

    @property
    def configuration(self) -> str:
        """Replicas per stage and microbatches, or the processes or threads of PyTorch."""
        if self.is_plain:
            count = self.threads
            told = "one GPU" if count is None else f"{count} thread{'s' * (count > 1)}"
            return told + f", in {self.passes} passes" * (self.passes > 1)
        if self.placement is None:
            every = self.every * self.method.accumulate
            averaged = f", weights averaged every {every} minibatches" * WAYS[self.way].local
            halved = ", gradients sent in bfloat16" * (self.way == "ddp-bf16")
            return f"{self.processes} processes{averaged}{halved}"
        if not self.method.flushes and self.method.microbatches == 1:
            return self.placement.configuration
        return f"{self.placement.configuration}, M = {self.method.microbatches}"

    def beside(self, usual: Method) -> str:
        """Return the same, what of the method is not as usual, and whether it is compiled.

        What takes several minibatches for one update is not as good as what takes as long with one.
        A rival that is called as its schedule need not say it twice.
        """
        told = [self.configuration]
        if self.placement is None and not self.is_plain:
            return ", ".join([*told, *["eager"] * usual.compiled])
        if self.placement is not None:
            told += self.method.unlike(usual, len(self.placement.stages))
            replicas = [len(stage.accelerators) for stage in self.placement.stages]
            updates = {self.method.minibatches_of_update(number) for number in replicas}
            if max(updates) > usual.accumulate:
                between = "–".join(map(str, sorted({min(updates), max(updates)})))
                told.append(f"updates every {between} minibatches")
        told += ["compiled"] * self.method.compiled
        return ", ".join(one for one in told if one != self.found_by)

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds per minibatch of every round so far; none if it failed."""
        return () if self.failure else tuple(m.seconds_per_minibatch for m in self.measurements)

    @property
    def is_judged(self) -> bool:
        """Whether seconds tell how good it is: of other updates only if they are weighed."""
        return self.samples > self.approximates

    @property
    def costs(self) -> tuple[float, ...]:
        """What a race judges: the seconds of every round, times the samples."""
        return tuple(one * self.samples for one in self.seconds if self.is_judged)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all that found it."""
        return tuple(self.found_by.split(", "))

    @property
    def key(self) -> Hashable:
        """A key that is equal for contenders that run and train alike."""
        candidate = self.candidate
        if candidate:
            return as_it_runs(candidate)
        return self.way, self.processes, self.every, self.threads, self.passes, self.method

    @property
    def simplicity(self) -> tuple[bool, int, bool, int, int]:
        """How simple it is to train that way: the least is the simplest, the first field decides.

        Whether it needs this project at all, stages, whether passes use weights that updates have
        changed meanwhile, workers that hold a stage, and microbatches.
        """
        if self.placement is None:
            return False, 1, False, self.processes, 1
        stages, workers = len(self.placement.stages), len(self.placement.accelerators)
        stale = stages > 1 and not self.method.flushes
        return True, stages, stale, workers, self.method.microbatches

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """The outcomes of all rounds so far."""
        if self.failure is None:
            return self.measurements
        return (*self.measurements, FailedMeasurement(failure="failed", reason=self.failure))

    @property
    def unmeasured(self) -> Contender:
        """The same without outcomes."""
        return self.model_copy(update={"measurements": (), "failure": None})

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
    """Return the method that was asked for, which what is usual has too; else the default."""
    return next((c.method for c in contenders if c.is_usual), Method())


def compiled_as_plain(
    contenders: Sequence[Contender], hopeless: Container[Hashable] = ()
) -> list[Contender]:
    """Return all compiled if plain PyTorch is, which is the better of both: so they gain as well.

    What cannot be compiled stays as it is, and so does torch's own data parallelism. Compiling
    takes seconds for every stage, so what has one of the ``hopeless`` keys stays as well.
    """
    if not any(one.is_plain and one.method.compiled for one in contenders):
        return list(contenders)
    return [
        one
        if one.placement is None or one.method.schedule_kind.splits_backward or one.key in hopeless
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
