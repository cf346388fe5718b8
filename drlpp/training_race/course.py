"""A race to a loss in progress: what is known is taken, what is trained is kept."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from drlpp.errors import (
    InvalidInput,
    ModelError,
    NotFinite,
    OutOfMemory,
    TrialTimeout,
    WorkerLost,
)
from drlpp.io.documents import read_document, write_document
from drlpp.runtime.device.emulation import available_cores, cores_for
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.training_reports import Stint
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.training_race.curves import Curve, Point
from drlpp.training_race.halving import Training
from drlpp.training_race.judging import RaceEnd, run_race
from drlpp.training_race.learners import Learner, PipelineLearner
from drlpp.training_race.plain_learner import PlainLearner
from drlpp.training_race.race_data import RaceData
from drlpp.training_race.training_race_file import TrainingRace

FILE_NAME = "race.json"


class Course:
    """Runs a race in a folder, or continues it.

    Args:
        session: the workers.
        fresh: the race, without runs; what the folder has trained of it is taken.
        data: to train and evaluate on.
        optimizer: of who has none of its own; learning rates are each training's.
        folder: for ``race.json`` and a folder of each training.
        start: the evaluation before any training, which all share.
        on_step: called with what comes next.
        on_point: called after every evaluation.
    """

    def __init__(
        self,
        session: ClusterSession,
        fresh: TrainingRace,
        data: RaceData,
        optimizer: OptimizerSpec,
        folder: Path,
        start: Point,
        *,
        on_step: Callable[[str], None] = lambda step: None,
        on_point: Callable[[Training, Point], None] = lambda training, point: None,
    ) -> None:
        self.session = session
        self.data = data
        self._optimizer = optimizer
        self.folder = folder
        self._path = folder / FILE_NAME
        self._start = Curve(points=(start,))
        self._on_step, self._on_point = on_step, on_point
        self._learners: dict[Training, Learner] = {}
        self.race = _continued(self._path, fresh)

    def run(self) -> RaceEnd:
        """Run the race to its end.

        Raises:
            RunFailure: plain PyTorch fails, a host is lost, or the disk fails.
        """
        # Candidates and the target may be others than before, though nobody has to train for it.
        write_document(self._path, self.race)
        return run_race(self.race, self.train, self._on_step, self.forget)

    def train(self, training: Training, enough: Callable[[Curve], bool]) -> Curve:
        """Train on until the curve is enough, or training fails."""
        curve = self.race.curves.get(training, self._start)
        while not (curve.failure or enough(curve)):
            before, curve = curve, self._advanced(training, curve)
            self.race = self.race.with_curve(training, curve)
            write_document(self._path, self.race)
            if len(curve.points) > len(before.points):
                self._on_point(training, curve.last)
        return curve

    def folder_of(self, training: Training) -> Path:
        """Return the folder of a training's checkpoint."""
        return self.folder / f"{training.candidate}-{training.rate:.6g}-{training.seed}"

    def optimizer_of(self, training: Training) -> OptimizerSpec:
        """Return the candidate's optimizer with the training's learning rate."""
        own = self.race.candidates[training.candidate].optimizer
        return (own or self._optimizer).with_rate(training.rate)

    def forget(self, training: Training) -> None:
        """Delete the checkpoint of a training that will not continue."""
        self._learners.pop(training, None)
        shutil.rmtree(self.folder_of(training), ignore_errors=True)

    def _advanced(self, training: Training, curve: Curve) -> Curve:
        """Train to the next evaluation."""
        done = curve.last.minibatches
        if not done:
            # Whatever lies there was trained by a run that was killed before it noted that.
            self.forget(training)
        try:
            stint = self._stint(training, done)
        except (NotFinite, OutOfMemory, ModelError) as failure:
            # It would fail again. Whatever else goes wrong ends the race, which can be resumed.
            reason = "the loss is not finite" if isinstance(failure, NotFinite) else str(failure)
            return curve.model_copy(update={"failure": reason})
        if stint.first != done:
            # Killed between a checkpoint and the note of it: its seconds are not known.
            self.forget(training)
            return self._start
        point = _point_after(curve.last, stint)
        diverged = "the held-out loss is not finite" if point.loss is None else None
        return Curve(points=(*curve.points, point), failure=diverged)

    def _stint(self, training: Training, done: int) -> Stint:
        """Train to the next evaluation; once more if a worker is lost, as for measurements."""
        learner = self._learner(training)
        stop = self._next_stop(done, learner.together)
        try:
            return learner.train_until(stop)
        except (WorkerLost, TrialTimeout):
            return learner.train_until(stop)

    def _next_stop(self, done: int, together: int) -> int:
        """Return where to evaluate next: within the epoch after whole updates, or at its end."""
        each = self.race.minibatches
        epoch, position = divmod(done, each)
        every = -(-self.race.every // together) * together
        return epoch * each + min(position + every, each)

    def _learner(self, training: Training) -> Learner:
        if training not in self._learners:
            self._learners[training] = self._built(training)
        return self._learners[training]

    def _built(self, training: Training) -> Learner:
        session = self.session
        candidate = self.race.candidates[training.candidate]
        optimizer = self.optimizer_of(training)
        data, folder = self.data.ordered(training.seed), self.folder_of(training)
        if candidate.candidate is not None:
            plan = session.plan(candidate.candidate)
            return PipelineLearner(session, plan, data, folder, optimizer)
        speed = max(session.speeds)
        cores = tuple(available_cores())
        (core,) = cores_for([speed], [("here", cores)]) if speed < 1 else [None]
        return PlainLearner(
            session.captured,
            data,
            folder,
            candidate.method,
            optimizer,
            threads=candidate.threads,
            device=session.device.value,
            speed=speed,
            core=core,
            seed=training.seed,
        )


def _point_after(last: Point, stint: Stint) -> Point:
    assert stint.held_out_loss is not None
    finite = abs(stint.held_out_loss) < float("inf")
    return Point(
        minibatches=stint.done,
        seconds=last.seconds + stint.seconds,
        loss=stint.held_out_loss if finite else None,
        score=stint.score,
    )


def _continued(path: Path, fresh: TrainingRace) -> TrainingRace:
    """Return the race with what the file has trained; a target and finals may have changed.

    Raises:
        InvalidInput: the file is of another race.
    """
    if not path.exists():
        return fresh
    known = read_document(path, TrainingRace)
    for name in ("model", "data", "optimizer", "minibatches", "every", "rates"):
        if getattr(known, name) != getattr(fresh, name):
            raise InvalidInput(
                f"{path} is of a race with {name} = {getattr(known, name)}; it cannot be resumed "
                f"with {getattr(fresh, name)}"
            )
    if known.candidates != fresh.candidates[: len(known.candidates)]:
        raise InvalidInput(f"{path} is of a race of other candidates; give another folder")
    return fresh.model_copy(update={"runs": known.runs})
