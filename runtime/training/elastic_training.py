"""Training that outlives the loss of workers and hosts, with as many workers as there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from torch import Tensor

from drlpp.capturing.graph import OpGraph
from drlpp.errors import DRLPPError, HostLost, InvalidInput, RunFailure, TrialTimeout, WorkerLost
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_reports import WorkersChanged, write_change

_MOST_LOSSES = 2
"""Of a worker without a checkpoint in between, after which it is given up."""

_MOST_REPLACEMENTS = 2
"""Of all workers without a checkpoint in between, where none can be named that is to blame."""


class Planner(Protocol):
    """Plans for the workers that there are."""

    def plan(self, accelerators: Collection[int], most: int) -> ExecutionPlan:
        """Return the plan for some of accelerators 0 … ``most`` − 1.

        Raises:
            InvalidInput: there is none.
        """


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


class _Grown(Exception):
    """There are more workers than the placement has."""


class ElasticTraining:
    """Lets a trainer train to its end, whatever becomes of workers.

    A worker that is lost is replaced with all others, in a fraction of a second, and the last
    checkpoint continues with what was in flight. It is given up when it is lost again before the
    next checkpoint, or cannot be started twice; the workers of a lost host are given up at once.
    Then there is a plan for those that are left, on which what was in flight is computed again.
    After every checkpoint those that have returned are taken back, and those that were not there
    at the beginning.

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
        self._losses: Counter[int] = Counter()
        self._replacements = 0
        self._kept = trainer.saved
        trainer.on_checkpoint = self._grow

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
            try:
                return self._trainer.train(self._plan)
            except _Grown:
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
            self._replacements = 0
        self._kept = self._trainer.saved
        cause = _original(failure)
        lost = cause.workers if isinstance(cause, WorkerLost | HostLost) else frozenset()
        self._losses.update(lost)
        self._replacements += not lost
        present = self._session.present
        most = 1 if isinstance(cause, HostLost) else _MOST_LOSSES
        given_up = tuple(w for w in present if w in lost and self._losses[w] >= most)
        if self._replacements > _MOST_REPLACEMENTS or (
            isinstance(cause, HostLost) and not given_up
        ):
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

    def _grow(self) -> None:
        """Plan for more workers, if any have returned, and train anew from the checkpoint."""
        if returned := self._session.take_back():
            self._plan = self._planner.plan(self._session.present, self._most)
            self._tell(f"{_workers(returned)} there again", returned=returned)
            raise _Grown

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


def _workers(workers: tuple[int, ...]) -> str:
    numbers = ", ".join(map(str, workers))
    return f"worker {numbers} is" if len(workers) == 1 else f"workers {numbers} are"
