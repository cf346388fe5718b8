"""The race that matters to a user: who has a good model first, on this data and these workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drlpp.comparison.contenders import Contender
from drlpp.errors import InvalidInput
from drlpp.runtime.loading.loaders import Unpacker
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.samples_in_memory import SamplesInMemory
from drlpp.runtime.training.training_data import LoadedData, TrainingData
from drlpp.specs.data import Data, Loaders, check_data, load_data
from drlpp.training_race.course import Course
from drlpp.training_race.curves import Point
from drlpp.training_race.halving import Training
from drlpp.training_race.judging import RaceEnd
from drlpp.training_race.plain_learner import held_out, initial_module
from drlpp.training_race.training_race_file import TrainingRace

_RATE_FACTOR = math.sqrt(10)


@dataclass(frozen=True)
class RaceOptions:
    """What a user may say of a race.

    Attributes:
        target_loss: what has to be reached on the held-out samples.
        target_seconds: instead of that, how long to train.
        epochs: without either, the target is the least loss of plain PyTorch in so many.
        every: minibatches between two evaluations; a fifth of an epoch if None.
        rates: how many learning rates are tried at first, a factor of √10 apart around the
            optimizer's own.
        finals: trainings of a finalist in all, with other orders of the samples.
        limit_seconds: of training, after which nobody trains on who has not reached the loss; 600,
            or five times what plain PyTorch takes to the loss it sets.
    """

    target_loss: float | None = None
    target_seconds: float | None = None
    epochs: int = 3
    every: int | None = None
    rates: int = 3
    finals: int = 3
    limit_seconds: float | None = None


def race_to_loss(
    session: ClusterSession,
    candidates: Sequence[Contender],
    data: str,
    folder: Path,
    options: RaceOptions | None = None,
    *,
    on_step: Callable[[str], None] = lambda step: None,
    on_point: Callable[[Training, Point], None] = lambda training, point: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> tuple[Course, RaceEnd]:
    """Run a race in ``folder``, or continue the same one.

    Args:
        session: the workers; its optimizer has the learning rate that rates are tried around.
        candidates: who takes part; the first is plain PyTorch.
        data: its name, as ``drlpp train`` takes it.
        folder: for ``race.json`` and the checkpoints.
        options: what wins, and how it is run.
        on_step: called with what comes next.
        on_point: called after every evaluation.
        on_note: called with a sentence about the data.

    Raises:
        InvalidInput: the data do not fit the model, or have no held-out samples.
        RunFailure: a host or the disk failed.
    """
    options = options or RaceOptions()
    source = _source(session, data, on_note)
    first = source(0)
    if not first.held_out_samples:
        raise InvalidInput(f"data {data!r} has no held-out samples, by which a race is decided")
    loss, score = held_out(initial_module(session.captured), session.captured, first)
    start = Point(minibatches=0, seconds=0.0, loss=loss, score=score)

    every = min(options.every or max(first.minibatches // 5, 1), first.minibatches)
    middle = float(session.optimizer.value("lr"))
    powers = range(-(options.rates // 2), options.rates - options.rates // 2)
    fresh = TrainingRace(
        model=str(session.captured.reference),
        data=first.name,
        optimizer=str(session.optimizer),
        minibatches=first.minibatches,
        every=every,
        candidates=tuple(candidates),
        target_loss=options.target_loss,
        target_seconds=options.target_seconds,
        epochs=options.epochs,
        limit_seconds=options.limit_seconds,
        rates=tuple(middle * _RATE_FACTOR**power for power in powers),
        finals=options.finals,
    )
    course = Course(
        session,
        fresh,
        source,
        session.optimizer,
        folder,
        start,
        on_step=on_step,
        on_point=on_point,
    )
    return course, course.run()


def _source(
    session: ClusterSession, name: str, note: Callable[[str], None]
) -> Callable[[int], TrainingData]:
    """Return what gives the data in the order of a seed; loaders are made anew each time."""
    task = session.captured.task
    assert task.targets is not None
    inputs, targets = task.inputs, task.targets
    found = load_data(name, inputs, targets)
    if isinstance(found, Data):
        check_data(name, found, inputs, targets)

    def source(seed: int) -> TrainingData:
        if isinstance(found, Data):
            return SamplesInMemory(name, found, task.batch_size, session.seed + seed)
        loaders = load_data(name, inputs, targets)
        assert isinstance(loaders, Loaders)
        return LoadedData(
            name,
            loaders,
            Unpacker(None, inputs, targets),
            minibatches=None,
            seed=session.seed + seed,
            note=note,
        )

    return source
