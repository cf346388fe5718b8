"""Every distinct candidate is measured once and remembered, within a run and across runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from drlpp.capturing.graph import OpGraph
from drlpp.envs.measuring.measurer import Measurer
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.io.files import append
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import FailedMeasurement, Measurement, Outcome, median_measurement
from drlpp.placement.measurements_file import Entry, Header, open_measurements, settled
from drlpp.placement.placement import Placement

Observer = Callable[[Candidate, Outcome], None]


class MemorySummary(NamedTuple):
    """How many placements were measured, and failed; the fewest seconds, None without any."""

    distinct: int
    failed: int
    best_seconds: float | None


def finders_text(found_by: Collection[str], *, policy: bool) -> str:
    """Return how many candidates each found, in words; of a policy only if there was one."""
    counts = Counter(who.partition(" ")[0] for who in found_by)
    told = [f"search {counts['search']}", f"planners {counts['planner']}"]
    if policy:
        told.append(f"policy {counts['policy']}")
    return f"found by: {', '.join(told)} of {len(found_by)}"


class MeasurementMemory:
    """A measurer that never measures the same candidate twice.

    A placement that comes without a method is run with the measurer's. What can be run is found out
    here, once for all runs of a candidate, and nothing else reaches the measurer.

    With several ``repetitions`` the outcome of a placement is the run whose seconds are the median
    of its runs. Placements that are measured together take turns, there and back, so that drift of
    the machine hits all alike. A run that fails makes its placement a failed one, which is
    remembered like the others whatever the reason, so that one that hangs costs its timeout once.

    Where there is a limit (``limit_seconds``), a candidate of which all runs so far were slower is
    not run again. It counts with these, and its measurement says so (``cut_short``).

    Every run is in the file before anything else happens. If the program is killed before the runs
    of a placement are complete, only those that are missing are made later. The placement may not
    be to blame for a failure in the file. Such a failure is measured once more when the placement
    is asked for again (:func:`drlpp.placement.measurements_file.settled`).

    Args:
        measurer: the cluster that measures.
        minibatches: over how many minibatches it measures (drl-pp §4.2: 30), all runs together.
        path: the file to keep runs in; what it already holds is not measured again.
        repetitions: runs of every placement, each over its part of the minibatches.

    Attributes:
        observers: called after every run with the canonical candidate and the run's outcome.
        limit_seconds: per minibatch; None, as long as nobody sets it, for none.
        per_second: what a second of a candidate counts where candidates and limit are compared; 1,
            as long as nobody sets it.
        most_staleness: the largest s of a stage that is measured; None, likewise, for any.
        found_by: who came by candidates, by canonical candidate, where an agent says it.

    Raises:
        InvalidInput: for fewer than 1 repetition.
        InvalidFile: if the file was written for another graph, number of accelerators, of
            minibatches or of repetitions, by a newer version, or is damaged elsewhere than in its
            last line.
    """

    def __init__(
        self,
        measurer: Measurer,
        minibatches: int = 30,
        path: str | Path | None = None,
        repetitions: int = 1,
    ) -> None:
        if repetitions < 1:
            raise InvalidInput(f"repetitions is {repetitions}; at least 1 is needed")
        self.measurer = measurer
        self.minibatches = minibatches
        self.repetitions = repetitions
        self.path = None if path is None else Path(path)
        self.observers: list[Observer] = []
        self.limit_seconds: float | None = None
        self.per_second: Callable[[Candidate], float] = lambda _: 1.0
        self.most_staleness: int | None = None
        self.found_by: dict[Candidate, str] = {}
        self._runs: dict[Candidate, list[Measurement]] = {}
        self._outcomes: dict[Candidate, Outcome] = {}
        self._header = Header(
            model=self.graph.model,
            graph_fingerprint=self.graph.fingerprint,
            accelerators=measurer.accelerators,
            minibatches=minibatches,
            repetitions=repetitions,
            method=measurer.method,
        )
        if self.path is not None:
            self._header, entries = open_measurements(self.path, self._header)
            for entry in settled(entries):
                self._check_possible(entry.placement)
                candidate = entry.candidate(self._header.method)
                self._remember(candidate, entry.outcome)
                if entry.found_by is not None:
                    self.found_by[candidate] = entry.found_by

    @property
    def graph(self) -> OpGraph:
        """The model that is measured."""
        return self.measurer.graph

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""
        return self.measurer.accelerators

    @property
    def outcomes(self) -> Mapping[Candidate, Outcome]:
        """Every outcome so far, by canonical candidate, in the order they were complete."""
        return MappingProxyType(self._outcomes)

    @property
    def finders(self) -> list[str]:
        """Who came by what has been measured, where an agent says it."""
        return [self.found_by[one] for one in self._outcomes if one in self.found_by]

    @property
    def distinct(self) -> int:
        """How many distinct candidates have been measured, failed ones included."""
        return len(self._outcomes)

    @property
    def summary(self) -> MemorySummary:
        """All counts at once, small enough to be sent between processes."""
        best = self.best()
        seconds = None if best is None else best[1].seconds_per_minibatch
        failed = sum(isinstance(one, FailedMeasurement) for one in self._outcomes.values())
        return MemorySummary(self.distinct, failed, seconds)

    def measure(self, placement: Placement | Candidate) -> Outcome:
        """Return the outcome of a candidate, which is measured if it is not known.

        Raises:
            InvalidInput: it cannot be run.
        """
        key = self._key(placement)
        if key not in self._outcomes:
            plan = self._plan(key)
            while key not in self._outcomes:
                self._run(plan)
        return self._outcomes[key]

    def measure_together(
        self, placements: Iterable[Placement | Candidate], most: int | None = None
    ) -> None:
        """Measure those candidates that are not known yet in turns, each ``repetitions`` times.

        One that cannot be run is left for :meth:`measure` to refuse.

        Args:
            placements: in the order of the first turn.
            most: how many that are not known yet are measured; the others are left out.
        """
        new: list[ExecutionPlan] = []
        for key in dict.fromkeys(map(self._key, placements)):
            if key not in self._outcomes:
                with suppress(InvalidInput):
                    new.append(self._plan(key))
        new = new[:most]
        for number in range(self.repetitions):
            for plan in new if number % 2 == 0 else reversed(new):
                key = plan.candidate
                if key not in self._outcomes and len(self._runs.get(key, ())) <= number:
                    with suppress(InvalidInput):
                        self._run(plan)

    def best(self) -> tuple[Candidate, Measurement] | None:
        """Return the first of :meth:`fastest`, the earliest of equals."""
        return next(iter(self.fastest(1)), None)

    def fastest(self, count: int) -> list[tuple[Candidate, Measurement]]:
        """Return the ``count`` best candidates in order; none that was cut short."""
        measured = [
            (c, o)
            for c, o in self._outcomes.items()
            if isinstance(o, Measurement) and not o.cut_short
        ]
        counts = self.per_second
        measured.sort(key=lambda pair: pair[1].seconds_per_minibatch * counts(pair[0]))
        return measured[:count]

    def close(self) -> None:
        """Close the measurer; everything measured is in the file already."""
        self.measurer.close()

    def _key(self, placement: Placement | Candidate) -> Candidate:
        if isinstance(placement, Placement):
            placement = Candidate(placement, self.measurer.method)
        return placement.canonical

    def _plan(self, key: Candidate) -> ExecutionPlan:
        plan = ExecutionPlan.of(key, self.graph, self.accelerators)
        plan.refuse_staler_than(self.most_staleness)
        return plan

    def _run(self, plan: ExecutionPlan) -> None:
        """Run a candidate once."""
        minibatches_of_a_run = -(-self.minibatches // self.repetitions)
        outcome = self.measurer.measure(plan, minibatches_of_a_run)
        if self._is_too_slow(plan.candidate, outcome):
            outcome = outcome.model_copy(update={"cut_short": True})
        if self.path is not None:
            entry = Entry.of(plan.candidate, outcome, self._header.method)
            by = {"found_by": self.found_by.get(plan.candidate)}
            append(self.path, entry.model_copy(update=by), exclude_none=True)
        self._remember(plan.candidate, outcome)
        for observer in self.observers:
            observer(plan.candidate, outcome)

    def _is_too_slow(self, candidate: Candidate, run: Outcome) -> bool:
        """Return whether the runs that are left after this one are not worth their time."""
        if self.limit_seconds is None or not isinstance(run, Measurement):
            return False
        runs = [*self._runs.get(candidate, ()), run]
        fewest = min(one.seconds_per_minibatch for one in runs) * self.per_second(candidate)
        return len(runs) < self.repetitions and fewest > self.limit_seconds

    def _check_possible(self, placement: Placement) -> None:
        """Refuse a file, perhaps edited, with operators or accelerators that are not there."""
        try:
            placement.validate_for(self.graph, self.accelerators)
        except InvalidInput as error:
            raise InvalidFile(f"{self.path}: a placement in it cannot be: {error}") from None

    def _remember(self, candidate: Candidate, run: Outcome) -> None:
        if isinstance(run, FailedMeasurement):
            self._outcomes[candidate] = run
            return
        runs = self._runs.setdefault(candidate, [])
        runs.append(run)
        if len(runs) < self.repetitions and not run.cut_short:
            return
        outcome = median_measurement(runs).model_copy(update={"cut_short": run.cut_short})
        self._outcomes[candidate] = outcome
