"""One fault at a random moment of a training or of a measurement, and what came of it."""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drlpp.capturing.capture import capture
from drlpp.errors import RunFailure, WorkerLost
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile, read_placement
from drlpp.runtime import ClusterSession, PipelineTrainer, TrainerCallbacks
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Link, local_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.endurance.faults.leftovers import everything_gone, killed_at_random, unfinished_in
from tests.endurance.faults.strikes import FAULTS, allow_files, release, strike

_ACCELERATORS = (0, 0, 1)
_DATA = "tests.endurance.faults.strikes:samples"
_BEGINS = "begins"
_CHECKPOINT_EVERY = 40
_MOST_DRAWS = 20
_MINIBATCHES = 3000
_PATIENCE_SECONDS = 10.0
"""After which a silent trial counts as hung."""


@dataclass(frozen=True)
class Trial:
    """What came of one fault.

    Attributes:
        kind: of the fault.
        during: "training" or "measuring".
        failure: the kind of failure that was reported; empty if none was.
        reason: the sentence that a user reads.
        went_on: whether the training resumed and ended with the bits of one without a fault, or
            the next measurement succeeded.
        left: processes, files and ports that were left behind.
    """

    kind: str
    during: str
    failure: str
    reason: str
    went_on: bool
    left: list[str] = field(default_factory=list)

    @property
    def as_expected(self) -> bool:
        """The right reason was given, everything continued, and nothing is left."""
        error = FAULTS[self.kind].told
        told = error.kind if error else ""
        return self.failure == told and self.went_on and not self.left


class FaultTrials:
    """Trials that share a model, a placement and the weights of a training without a fault.

    Args:
        folder: for everything that is written.
    """

    def __init__(self, folder: Path) -> None:
        self.triggers = folder / "triggers"
        self.triggers.mkdir()
        self._folder = folder
        model = ModelReference.named("tests.support.models.small:perceptron", layers=2)
        self._captured = captured = capture(model)
        optimizer = OptimizerSpec.parse(
            "tests.endurance.faults.strikes:FaultyAdam", lr=0.01, triggers=str(self.triggers)
        )
        count = len(captured.graph)
        halves = [2 * operator // count for operator in range(count)]
        self.placement = Placement.from_assignment(halves, _ACCELERATORS)
        self._document = PlacementFile.create(
            captured.reference,
            captured.graph,
            self.placement,
            local_cluster(len(_ACCELERATORS), Link(bandwidth_bytes_per_second=1e9)),
            method=Method(),
            optimizer=optimizer,
            found_by="fault injection",
        )
        begins: list[float] = []
        observer = TrainerCallbacks(on_begin=lambda: begins.append(time.perf_counter()))
        self._wanted = self._train(folder / "whole", observer)
        self._seconds = time.perf_counter() - begins[0]

    def _train(
        self,
        out: Path,
        observer: TrainerCallbacks | None = None,
        timeout_seconds: float | None = None,
    ) -> dict[str, Tensor]:
        trainer = PipelineTrainer(
            self._document,
            checkpoint_every=_CHECKPOINT_EVERY,
            timeout_seconds=timeout_seconds,
            out=out,
            resume=out.exists(),
            observer=observer,
        )
        return trainer.fit(_DATA, epochs=1).state_dict

    def training(self, kind: str, seed: int) -> Trial:
        """Cause a fault at a random moment of a training, which is then continued."""
        if kind == "controller":
            return self._killed_controller(seed)
        chance = random.Random(f"{kind} {seed}")
        for draw in range(_MOST_DRAWS):
            out = self._folder / f"training-{kind}-{seed}-{draw}"
            with everything_gone() as left, self._striking(kind, chance) as struck:
                failure, reason = "", ""
                try:
                    self._train(out, TrainerCallbacks(on_begin=struck.start), _PATIENCE_SECONDS)
                except RunFailure as error:
                    failure, reason = error.kind, str(error)
            if failure or (FAULTS[kind].told is None and struck.happened):
                went_on = self._goes_on(out)
                left += unfinished_in(out)
                return Trial(kind, "training", failure, reason, went_on, left)
        raise RuntimeError(f"{kind}: {_MOST_DRAWS} trainings ended before the fault")

    def measuring(self, kind: str, seed: int) -> Trial:
        """Cause a fault at a random moment of a measurement, after which the session continues.

        One that loses a worker says so, is made again, and has to succeed.
        """
        chance = random.Random(f"{kind} {seed} measuring")
        lost: list[str] = []
        with (
            everything_gone() as left,
            ClusterSession(
                self._captured,
                len(_ACCELERATORS),
                optimizer=self._document.optimizer,
                timeout_seconds=_PATIENCE_SECONDS,
                note=lost.append,
            ) as session,
        ):
            session.measure(self.placement, 30)
            for _ in range(_MOST_DRAWS):
                with self._striking(kind, chance) as struck:
                    struck.start()
                    outcome = session.measure(self.placement, _MINIBATCHES)
                failed = isinstance(outcome, FailedMeasurement)
                if lost or failed or (FAULTS[kind].told is None and struck.happened):
                    break
            else:
                raise RuntimeError(f"{kind}: {_MOST_DRAWS} measurements ended before the fault")
            next_one = session.measure(self.placement, 10)
        went_on = isinstance(next_one, Measurement)
        if isinstance(outcome, FailedMeasurement):
            failure, reason = outcome.failure, outcome.reason
        elif lost:
            failure, reason = WorkerLost.kind, lost[0]
        else:
            failure, reason = "", ""
        return Trial(kind, "measuring", failure, reason, went_on, left)

    def _killed_controller(self, seed: int) -> Trial:
        """Kill a program that trains at a random moment; resume it, and see what remains of it."""
        out = self._folder / f"controller-{seed}"
        path = self._folder / "placement.json"
        if not path.exists():
            write_document(path, self._document)
        command = [sys.executable, "-m", "tests.endurance.faults.trials"]
        left = killed_at_random(
            [*command, str(path), str(out)],
            out,
            lambda said: _BEGINS in said,
            0.8 * self._seconds,
            random.Random(f"controller {seed}"),
        )
        went_on = self._goes_on(out)
        return Trial("controller", "training", "", "", went_on, left + unfinished_in(out))

    def _goes_on(self, out: Path) -> bool:
        release(self.triggers)
        found = self._train(out)
        return all(torch.equal(value, found[name]) for name, value in self._wanted.items())

    @contextmanager
    def _striking(self, kind: str, chance: random.Random) -> Iterator[_Strike]:
        struck = _Strike(chance.uniform(0, 0.9 * self._seconds), kind, self.triggers, chance)
        try:
            yield struck
        finally:
            struck.cancel()
            if struck.ident is not None:
                struck.join()
            allow_files()
            release(self.triggers)


class _Strike(threading.Timer):
    """A fault that happens so many seconds after :meth:`start`, if there is a worker by then."""

    def __init__(self, seconds: float, *strike_: Any) -> None:
        super().__init__(seconds, self._now)
        self._arguments = strike_
        self.happened = False

    def _now(self) -> None:
        self.happened = strike(*self._arguments)


def _program(placement: str, out: str) -> None:
    """Train, and print when that begins."""
    document = read_placement(placement)
    # The model and the optimizer that the file names, which are the tests' own.
    optimizer = document.optimizer.changed(document.optimizer.name, {})
    document = document.with_model(document.model.name)
    trainer = PipelineTrainer(
        document.model_copy(update={"optimizer": optimizer}),
        checkpoint_every=_CHECKPOINT_EVERY,
        out=out,
        observer=TrainerCallbacks(on_begin=lambda: print(_BEGINS, flush=True)),
    )
    trainer.fit(_DATA, epochs=1)


if __name__ == "__main__":
    _program(*sys.argv[1:])
