"""The race that matters to a user: time to a loss, on this data and these workers.

It leaves the winner's weights, in the folder of its training.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput, ModelError, NotFinite, OutOfMemory, TrialTimeout, WorkerLost
from drlpp.io.documents import read_document, write_document
from drlpp.placement.measurement import median_measurement
from drlpp.placement.placement_file import PlacementFile
from drlpp.racing.contenders import Contender
from drlpp.racing.halving import Halving
from drlpp.racing.parallel import ParallelLearner
from drlpp.racing.plain import PlainLearner, held_out_loss, initial_module
from drlpp.racing.prospects import learning_rates_shared
from drlpp.racing.training_race import Curve, Point, RaceEnd, Training, TrainingRace
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_data import LoadedData, SamplesInMemory, TrainingData
from drlpp.runtime.training.training_plan import Stint, TrainerCallbacks, TrainingPlan
from drlpp.specs.cluster import Cluster
from drlpp.specs.data import Data, load_data
from drlpp.specs.optimizer_spec import OptimizerSpec

FILE_NAME = "race.json"

_RATE_FACTOR = math.sqrt(10)

_BETWEEN_EVALUATIONS = 10
"""Minibatches for every worker: a pipeline drains before an evaluation, which takes the time of
fewer than one for every worker."""

Learner = tuple[int, Callable[[int], Stint]]
"""After how many minibatches a training may pause, and what trains until so many are done."""


class RaceData:
    """The data of a race, for every training anew, in the order of its seed.

    Args:
        captured: the model.
        name: of the data, which ``drlpp train`` takes as well.
        seed: of the run; each training adds its own.
        note: called with a sentence about what is left out.

    Raises:
        InvalidInput: the data do not fit the model, or have no held-out samples; or the model has
            no loss.
    """

    def __init__(
        self,
        captured: CapturedModel,
        name: str,
        seed: int = 0,
        note: Callable[[str], None] = lambda note: None,
    ) -> None:
        if captured.task.loss is None:
            raise InvalidInput(
                f"model {captured.reference} has no loss to train with; let its factory return "
                "(module, inputs, targets, loss)"
            )
        self.name = name
        self._captured, self._seed, self._note = captured, seed, note
        self._in_memory: Data | None = None
        self.first = self.ordered(0)
        if not self.first.held_out_count.samples:
            raise InvalidInput(
                f"data {name!r} have no held-out samples, by which races are decided"
            )
        # Notes of one loader are enough.
        self._note = lambda note: None

    def ordered(self, seed: int) -> TrainingData:
        """Return the data in the order of a seed."""
        seed, task = seed + self._seed, self._captured.task
        found = self._in_memory or load_data(self.name, task.inputs, task.targets)
        if isinstance(found, Data):
            self._in_memory = found
            return SamplesInMemory(self.name, found, task.batch_size, seed)
        captured, note = self._captured, self._note
        return LoadedData(self.name, found, None, captured=captured, seed=seed, note=note)


@dataclass
class Course:
    """A race in progress: what is known is taken, what is trained is kept in a folder.

    Attributes:
        session: the workers.
        race: with all that was trained so far, in this folder or before.
        data: to train and evaluate on.
        folder: for ``race.json`` and a folder of each training.
        on_step: called with what comes next.

    Raises:
        InvalidInput: the folder holds another race.
    """

    session: ClusterSession
    race: TrainingRace
    data: RaceData
    folder: Path
    on_step: Callable[[str], None] = lambda step: None

    def __post_init__(self) -> None:
        session = self.session
        self._path = self.folder / FILE_NAME
        self._learners: dict[Training, Learner] = {}
        self.race = _continued(self._path, self.race)
        # All share the evaluation before any training.
        module = initial_module(session.captured)
        loss = held_out_loss(module, session.captured.task, self.data.first, session.method)
        self._start = Curve(points=(_point(0, 0.0, loss),))

    def run(self) -> RaceEnd:
        """Run the race to its end.

        Raises:
            RunFailure: the first candidate fails, a host is lost, or the disk fails.
        """
        # Candidates and the target may be others than before, though none has to train for it.
        write_document(self._path, self.race)
        return Halving(self.race, self.train, self.on_step, self.forget).run()

    def train(self, training: Training, enough: Callable[[Curve], bool]) -> Curve:
        """Train on until the curve is enough, or training fails."""
        curve = self.race.curves.get(training, self._start)
        while not (curve.failure or enough(curve)):
            curve = self._advanced(training, curve)
            self.race = self.race.with_curve(training, curve)
            write_document(self._path, self.race)
        return curve

    def folder_of(self, training: Training) -> Path:
        """Return the folder of a training's checkpoint."""
        return self.folder / f"{training.candidate}-{training.rate:.6g}-{training.seed}"

    def candidate_of(self, training: Training) -> Contender:
        """Return what is trained."""
        return self.race.candidates[training.candidate]

    def optimizer_of(self, training: Training) -> OptimizerSpec:
        """Return the optimizer with the training's learning rate."""
        return self.session.optimizer.with_rate(training.rate)

    def forget(self, training: Training) -> None:
        """Delete the checkpoint of a training that will not continue."""
        self._learners.pop(training, None)
        shutil.rmtree(self.folder_of(training), ignore_errors=True)

    def _advanced(self, training: Training, curve: Curve) -> Curve:
        """Train to the next evaluation."""
        done = curve.minibatches
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
        assert stint.held_out_loss is not None
        point = _point(stint.done, curve.seconds + stint.seconds, stint.held_out_loss)
        diverged = "the held-out loss is not finite" if point.loss is None else None
        return Curve(points=(*curve.points, point), failure=diverged)

    def _stint(self, training: Training, done: int) -> Stint:
        """Train to the next evaluation; once more if a worker is lost, as for measurements."""
        if training not in self._learners:
            self._learners[training] = self._learner(training)
        together, train_until = self._learners[training]
        # Within the epoch after whole updates, or at its end.
        each = self.race.minibatches
        epoch, position = divmod(done, each)
        every = -(-self.race.every // together) * together
        stop = epoch * each + min(position + every, each)
        try:
            return train_until(stop)
        except (WorkerLost, TrialTimeout):
            return train_until(stop)

    def _learner(self, training: Training) -> Learner:
        session, one = self.session, self.candidate_of(training)
        optimizer = self.optimizer_of(training)
        data, folder = self.data.ordered(training.seed), self.folder_of(training)
        folder.mkdir(exist_ok=True)
        if one.candidate is None:
            kind = PlainLearner if one.is_plain else ParallelLearner
            alone = kind(session, one, data, folder, optimizer, training.seed)
            return one.method.accumulate * one.every, alone.train_until
        plan, endless = session.plan(one.candidate), TrainingPlan(epochs=1)
        trainer = Trainer(session, data, folder, endless, TrainerCallbacks(), optimizer)
        return plan.method.minibatches_together(plan.pipeline), partial(trainer.train_until, plan)


def _point(minibatches: int, seconds: float, loss: float) -> Point:
    known = loss if math.isfinite(loss) else None
    return Point(minibatches=minibatches, seconds=seconds, loss=known)


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


def race_to_loss(
    session: ClusterSession,
    candidates: Sequence[Contender],
    data: RaceData,
    folder: Path,
    *,
    target_loss: float | None = None,
    epochs: int = 3,
    every: int | None = None,
    rates: int = 3,
    finals: int = 3,
    limit_seconds: float | None = None,
    on_step: Callable[[str], None] = lambda step: None,
) -> tuple[Course, RaceEnd]:
    """Run a race in ``folder``, or continue the one that is there.

    A race may be continued with another target, more finals, or candidates behind the known ones.

    Args:
        session: the workers; its optimizer has the learning rate that rates are tried around.
        candidates: what takes part; the first is plain PyTorch, or what takes its place.
        data: to train and evaluate on.
        folder: for ``race.json`` and the checkpoints.
        target_loss, epochs, finals, limit_seconds: as in
            :class:`~drlpp.racing.training_race.TrainingRace`.
        every: minibatches between two evaluations; by default those of the race that is there, or a
            fifth of an epoch, or more where that is short.
        rates: how many learning rates are tried at first, a factor of √10 apart.
        on_step: called with what comes next.

    Raises:
        InvalidInput: the folder holds another race.
        RunFailure: a host, a worker or the disk failed; the race can be continued.
    """
    minibatches = data.first.minibatches
    if every is None and (folder / FILE_NAME).exists():
        every = read_document(folder / FILE_NAME, TrainingRace).every
    usual = max(minibatches // 5, _BETWEEN_EVALUATIONS * session.accelerators)
    middle = session.optimizer.rate
    fresh = TrainingRace(
        model=str(session.captured.reference),
        data=data.name,
        optimizer=str(session.optimizer),
        minibatches=minibatches,
        every=min(every or usual, minibatches),
        candidates=tuple(candidates),
        target_loss=target_loss,
        epochs=epochs,
        limit_seconds=limit_seconds,
        rates=tuple(middle * _RATE_FACTOR ** (power - rates // 2) for power in range(rates)),
        rate_of=tuple(learning_rates_shared(session, candidates)),
        finals=finals,
    )
    course = Course(session, fresh, data, folder, on_step)
    return course, course.run()


def export(
    session: ClusterSession,
    contender: Contender,
    cluster: Cluster,
    folder: Path,
    optimizer: OptimizerSpec | None = None,
) -> Path:
    """Write a contender's ``placement.json``, with its median measurement; return its path.

    The contender has a placement: plain PyTorch needs no file. Without ``optimizer`` it is the
    session's. The cluster may be a part of the session's, by whose numbers the placement is.
    """
    assert contender.candidate is not None
    measured = contender.measurements
    document = PlacementFile.create(
        session.captured.reference,
        session.graph,
        contender.candidate.placement,
        cluster,
        method=contender.candidate.method,
        optimizer=optimizer or session.optimizer,
        found_by=contender.found_by,
        measurement=median_measurement(measured) if measured else None,
    )
    return write_document(folder / "placement.json", document)
