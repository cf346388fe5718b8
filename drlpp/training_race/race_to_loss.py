"""The race that matters to a user: time to a good model, on this data and these workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from drlpp.comparison.contenders import Contender
from drlpp.errors import InvalidInput
from drlpp.runtime.session.session import ClusterSession
from drlpp.training_race.course import Course
from drlpp.training_race.curves import Point
from drlpp.training_race.halving import Training
from drlpp.training_race.judging import RaceEnd
from drlpp.training_race.plain_learner import held_out, initial_module
from drlpp.training_race.race_data import RaceData
from drlpp.training_race.training_race_file import Racer, TrainingRace

_RATE_FACTOR = math.sqrt(10)


@dataclass(frozen=True)
class RaceOptions:
    """What a user may say of a race.

    Attributes:
        target_loss: what has to be reached on the held-out samples.
        target_seconds: instead of that, how long to train.
        epochs: without either, the target is the loss of plain PyTorch after so many.
        every: minibatches between two evaluations; a fifth of an epoch if None.
        rates: how many learning rates are tried at first, a factor of √10 apart around the
            optimizer's own.
        finals: trainings of a finalist in all, with other orders of the samples.
        limit_seconds: of training, after which every candidate stops; 600,
            or five times what plain PyTorch takes to the loss it sets.
        halving: candidates end before the goal if they fall behind.
    """

    target_loss: float | None = None
    target_seconds: float | None = None
    epochs: int = 3
    every: int | None = None
    rates: int = 3
    finals: int = 3
    limit_seconds: float | None = None
    halving: bool = True

    def __post_init__(self) -> None:
        if self.target_loss is not None and self.target_seconds is not None:
            raise InvalidInput(
                "a race has either a loss or a time as its target; leave out --target-loss or "
                "--seconds (target_loss, target_seconds)"
            )


def race_to_loss(
    session: ClusterSession,
    candidates: Sequence[Contender],
    data: RaceData,
    folder: Path,
    options: RaceOptions | None = None,
    *,
    on_step: Callable[[str], None] = lambda step: None,
    on_point: Callable[[Training, Point], None] = lambda training, point: None,
) -> tuple[Course, RaceEnd]:
    """Run a race in ``folder``, or continue the one that is there.

    A race may be continued with another target, more finals, or candidates behind the known ones.

    Args:
        session: the workers; its optimizer has the learning rate that rates are tried around.
        candidates: who takes part; the first is plain PyTorch. A :class:`Racer` may have an
            optimizer of its own.
        data: to train and evaluate on.
        folder: for ``race.json`` and the checkpoints.
        options: what wins, and how it is run.
        on_step: called with what comes next.
        on_point: called after every evaluation, when it is kept.

    Raises:
        InvalidInput: the folder holds another race.
        RunFailure: a host, a worker or the disk failed; the race can be continued.
    """
    options = options or RaceOptions()
    captured, first = session.captured, data.first
    loss, score = held_out(initial_module(captured), captured, first, session.method)
    every = min(options.every or max(first.minibatches // 5, 1), first.minibatches)
    middle = float(session.optimizer.value("lr"))
    powers = range(-(options.rates // 2), options.rates - options.rates // 2)
    fresh = TrainingRace(
        model=str(captured.reference),
        data=data.name,
        optimizer=str(session.optimizer),
        minibatches=first.minibatches,
        every=every,
        candidates=tuple(map(Racer.made_of, candidates)),
        target_loss=options.target_loss,
        target_seconds=options.target_seconds,
        epochs=options.epochs,
        limit_seconds=options.limit_seconds,
        rates=tuple(middle * _RATE_FACTOR**power for power in powers),
        finals=options.finals,
        halving=options.halving,
    )
    start = Point(minibatches=0, seconds=0.0, loss=loss, score=score)
    optimizer = session.optimizer
    course = Course(
        session, fresh, data, optimizer, folder, start, on_step=on_step, on_point=on_point
    )
    return course, course.run()
