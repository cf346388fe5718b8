"""Training that outlives the loss of workers and hosts, with as many workers as there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence, Set
from math import log
from pathlib import Path
from statistics import median_high, median_low
from typing import Protocol, Self

from torch import Tensor

from drlpp.capturing.graph import OpGraph
from drlpp.errors import DRLPPError, HostLost, InvalidInput, RunFailure, TrialTimeout, WorkerLost
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import LinkUsage, Measurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime.session.measuring import RunMeter, time_ways
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_plan import WorkersChanged, write_change

_MOST_LOSSES = 2
"""Of a worker without a checkpoint in between, after which it is given up."""

_MOST_REPLACEMENTS = 2
"""Of all workers without a checkpoint in between, where none can be named that is to blame."""

_CHANGED = 1.4
"""So many times slower or faster than planned for, twice in a row, is no chance: where other
programs use the cores as well, the same work takes up to a third longer."""

_GAIN = 1.1
"""How much faster another plan has to be predicted: predictions are off by some percent."""

_PACE = -1
"""Stands for the seconds per minibatch where others are the workers' own."""


class Planner(Protocol):
    """Plans for the workers that there are, and predicts what they do."""

    @property
    def slower(self) -> Mapping[int, float]:
        """How many times as long as declared workers are taken to compute; 1 if not named."""

    def plan(self, accelerators: Collection[int], most: int) -> ExecutionPlan:
        """Return the plan for some of accelerators 0 … ``most`` − 1.

        Raises:
            InvalidInput: there is none.
        """

    def corrected(self, plan: ExecutionPlan, seen: Measurement) -> Self:
        """Return what plans with the costs that a plan had last."""

    def timed(self, links: Sequence[LinkUsage]) -> Self:
        """Return what plans with the times that messages take."""

    def slowed(self, slower: Mapping[int, float]) -> Self:
        """Return what plans for workers that compute so many times as long as declared."""

    def slowness(self, plan: ExecutionPlan, seen: Measurement) -> Mapping[int, float]:
        """Return how many times as long as declared workers computed; none without a profile."""

    def seconds(self, plan: ExecutionPlan) -> float:
        """Return the seconds per minibatch that are predicted."""


class Elasticity(Protocol):
    """How many workers a training wants, and who plans for them (``replanning.Elastic``)."""

    @property
    def least(self) -> int:
        """The number of workers below which training ends."""

    @property
    def most(self) -> int:
        """The number of workers that training begins with if they are there, and grows to."""

    def planner(self, document: PlacementFile, graph: OpGraph, path: Path | None) -> Planner:
        """Return what plans for a placement, read from ``path`` if from any."""


class _PlannedAnew(Exception):
    """There are more workers, or faster or slower ones, than the placement was planned for."""


class ElasticTraining:
    """Lets a trainer train to its end, whatever becomes of workers.

    A worker that is lost is replaced with all others, in a fraction of a second, and the last
    checkpoint continues. It is given up when it is lost again before the next checkpoint, or cannot
    be started twice; the workers of a lost host are given up at once. Then there is a plan for
    those that are left, on which the last checkpoint continues. After every checkpoint those that
    have returned are taken back, and those that were not there at the beginning; and what workers
    did since is looked at. If one takes longer beside the others than it was planned for, or less,
    twice in a row, there is another plan, and training continues with it if it is predicted to be
    faster. A worker that the plan does not use stays as slow as it was. Plans are compared by their
    steady states: what it costs to drain a deeper pipeline before every checkpoint is not counted.

    Args:
        trainer: of a session of ``elasticity.most`` workers, some of which may not be there yet.
        elasticity: how many workers at least.
        planner: plans for those that are left.

    Raises:
        InvalidInput: there is no plan for those that are there.
    """

    def __init__(self, trainer: Trainer, elasticity: Elasticity, planner: Planner) -> None:
        self._trainer = trainer
        self._session = trainer.session
        self._least, self._most = elasticity.least, elasticity.most
        self._planner = planner
        self._plan = self._first_plan()
        # Of every worker; of none that can be named.
        self._losses: Counter[int | None] = Counter()
        self._kept = trainer.saved
        self._measured, self._pace = 0, 0.0
        self._usual: Mapping[int, float] = {}
        self._suspected: Set[int] = frozenset()
        trainer.on_checkpoint = self._at_checkpoint

    def _first_plan(self) -> ExecutionPlan:
        """Plan for the workers that are there; say which are not."""
        present, host_of = self._session.present, self._session.host_of
        missing = {host: None for worker, host in host_of.items() if worker not in present}
        hosts, are = ("host", "is") if len(missing) == 1 else ("hosts", "are")
        begin = (
            f"{hosts} {', '.join(missing)} {are} missing or in use: training begins with "
            f"{len(present)} of {self._most} workers"
        )
        try:
            plan = self._planner.plan(present, self._most)
        except InvalidInput as error:
            if not missing:
                raise
            raise InvalidInput(f"{begin}, for which there is no plan: {error}") from error
        if missing:
            self._trainer.observer.on_note(
                f"{begin}, {plan.placement.configuration}, and grows when there are more"
            )
        return plan

    def train(self) -> dict[str, Tensor]:
        """Train up to the last epoch and return the state_dict.

        Raises:
            RunFailure: something failed that other workers do not mend, or too few are left.
        """
        while True:
            self._measured, self._suspected = 0, frozenset()
            try:
                return self._trainer.train(self._plan)
            except _PlannedAnew:
                continue
            except (WorkerLost, HostLost, TrialTimeout) as failure:
                self._recover(failure)

    def _recover(self, failure: RunFailure) -> None:
        """Plan for what is left.

        Raises:
            RunFailure: too little is left.
        """
        if self._trainer.saved != self._kept:
            self._losses.clear()
        self._kept = self._trainer.saved
        cause = _original(failure)
        lost = cause.workers if isinstance(cause, WorkerLost | HostLost) else frozenset()
        self._losses.update(lost or {None})
        present = self._session.present
        most = 1 if isinstance(cause, HostLost) else _MOST_LOSSES
        given_up = tuple(w for w in present if w in lost and self._losses[w] >= most)
        no_host_left = isinstance(cause, HostLost) and not given_up
        if no_host_left or self._losses[None] > _MOST_REPLACEMENTS:
            raise failure
        if given_up:
            self._session.give_up(given_up)
            self._plan = self._plan_for_the_rest(failure)
        what = f"{_workers(given_up)} given up" if given_up else "replaced"
        self._tell(f"{cause}: {what}", given_up=given_up)

    def _plan_for_the_rest(self, failure: RunFailure) -> ExecutionPlan:
        left = self._session.present
        if len(left) < self._least:
            raise type(failure)(
                f"{failure}; {len(left)} workers are left, and training wants {self._least} at "
                "least (elastic): resume it with fewer, or when there are more"
            )
        try:
            return self._planner.plan(left, self._most)
        except InvalidInput as error:
            raise type(failure)(
                f"{failure}; for workers {', '.join(map(str, left))} there is no plan: {error}"
            ) from error

    def _at_checkpoint(self) -> None:
        """Plan for more workers, if any have returned, and train anew from the checkpoint."""
        if returned := self._session.take_back():
            # They may be on another host.
            slower = self._planner.slower.items()
            self._planner = self._planner.slowed({w: f for w, f in slower if w not in returned})
            self._plan = self._planner.plan(self._session.present, self._most)
            self._tell(f"{_workers(returned)} there again", returned=returned)
            raise _PlannedAnew
        if self._trainer.meter is not None:
            self._look(self._trainer.meter)

    def _look(self, meter: RunMeter) -> None:
        """Plan anew if workers, or messages, have become slower or faster than planned for."""
        now = meter.latest
        self._measured += now is not None
        # What a deployment begins with takes longer.
        if now is None or self._measured == 1:
            return
        begins = self._measured == 2
        if begins:
            self._planner = self._planner.corrected(self._plan, now)
        planner, ratios = self._planner, self._beside_others(now)
        if not ratios:
            return
        if begins:
            self._pace = planner.seconds(self._plan)
            # So little may be the profile's error, for the operators that a worker has.
            self._usual = {worker: 1.0 if _differs(r) else r for worker, r in ratios.items()}
        ratios = {worker: ratio / self._usual[worker] for worker, ratio in ratios.items()}
        changed = {worker for worker, ratio in ratios.items() if _differs(ratio)}
        if _differs(now.seconds_per_minibatch / self._pace):
            changed.add(_PACE)
        held, self._suspected = changed & self._suspected, changed
        if workers := sorted(held - {_PACE}):
            slower = planner.slower
            factors = {worker: slower.get(worker, 1.0) * ratios[worker] for worker in workers}
            told = ", ".join(f"worker {w} takes {f:.1f} times as long" for w, f in factors.items())
            # Equal accelerators stay equal to planners.
            slower = {w: f for w, f in {**slower, **factors}.items() if _differs(f)}
            self._planner = planner.slowed(slower).corrected(self._plan, now)
            # The next measurement begins as if it were of a new deployment.
            self._measured = 1
            self._switch(f"{told} as planned")
        elif held == changed == {_PACE} and len(ratios) > 1:
            self._pace = now.seconds_per_minibatch
            ways = time_ways(self._session, self._plan.pipeline, meter.results)
            self._planner = planner.timed(ways)
            longer = self._planner.seconds(self._plan) / planner.seconds(self._plan)
            if _differs(longer):
                self._switch(
                    f"by its messages a minibatch takes {longer:.1f} times as long as planned"
                )

    def _beside_others(self, now: Measurement) -> dict[int, float]:
        """Return how many times as long as planned each worker took, as a part of what all did.

        What all take longer is no reason to divide the work otherwise. None without a profile.
        """
        slower = self._planner.slower
        found = self._planner.slowness(self._plan, now)
        ratios = {worker: factor / slower.get(worker, 1.0) for worker, factor in found.items()}
        if not ratios:
            return {}
        middle = median_low(ratios.values()), median_high(ratios.values())
        # Of two workers one is as planned: the one that is nearer to it.
        common = min(middle, key=lambda ratio: abs(log(ratio)))
        return {worker: ratio / common for worker, ratio in ratios.items()}

    def _switch(self, reason: str) -> None:
        """Go on with another plan, if that is predicted to be worth it."""
        try:
            plan, before = self._planner.plan(self._session.present, self._most), self._plan
        except InvalidInput:
            # What runs goes on.
            return
        faster = self._planner.seconds(before) / self._planner.seconds(plan)
        if faster > _GAIN:
            self._plan = plan
            self._tell(
                f"{reason}: planned anew, {plan.placement.configuration} instead of "
                f"{before.placement.configuration}; predicted {faster:.2f}× faster"
            )
            raise _PlannedAnew

    def _tell(self, reason: str, **changed: tuple[int, ...]) -> None:
        epochs, minibatches = self._trainer.saved
        change = WorkersChanged(
            epochs=epochs,
            minibatches=minibatches,
            reason=reason,
            workers=self._session.present,
            configuration=self._plan.placement.configuration,
            **changed,
        )
        write_change(self._trainer.folder / CHANGES_NAME, change)
        self._trainer.observer.on_note(change.text)


def _original(failure: DRLPPError) -> DRLPPError:
    """Return the failure as the session raised it, without the way on that was added for users."""
    while isinstance(failure.__cause__, type(failure)):
        failure = failure.__cause__
    return failure


def _differs(ratio: float) -> bool:
    return not 1 / _CHANGED < ratio < _CHANGED


def _workers(workers: tuple[int, ...]) -> str:
    numbers = ", ".join(map(str, workers))
    return f"worker {numbers} is" if len(workers) == 1 else f"workers {numbers} are"
