"""The file of a race to a loss: who took part, and every evaluation so far."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, model_validator

from drlpp.comparison.contenders import Contender
from drlpp.io.documents import Document, Record
from drlpp.io.quantities import Count
from drlpp.training_race.curves import Curve
from drlpp.training_race.halving import Training


class TrainingRun(Record):
    """One training of a race: a candidate's number, its learning rate, its order of samples."""

    candidate: Count
    rate: float = Field(gt=0, allow_inf_nan=False)
    seed: Count = 0
    curve: Curve

    @property
    def training(self) -> Training:
        """What tells it from the others."""
        return Training(self.candidate, self.rate, self.seed)


class TrainingRace(Document):
    """A race to a loss, of one model on the same workers.

    Attributes:
        model, data, optimizer: their names.
        minibatches: of an epoch.
        every: minibatches between two evaluations.
        candidates: who takes part; plain PyTorch is the first.
        target_loss: what has to be reached first.
        target_seconds: instead of it, after how long the least loss wins.
        epochs: with neither, the target is the least loss of plain PyTorch in so many epochs.
        limit_seconds: of training, after which nobody trains on who has not reached the loss.
        rates: learning rates that everybody tries.
        finals: trainings of a finalist.
        halving: whether candidates end before the goal.
        runs: what was trained so far.
    """

    kind: ClassVar[str] = "training race"

    model: str
    data: str
    optimizer: str
    minibatches: int = Field(ge=1)
    every: int = Field(ge=1)
    candidates: tuple[Contender, ...] = Field(min_length=1)
    target_loss: float | None = Field(default=None, allow_inf_nan=False)
    target_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    epochs: int = Field(default=3, ge=1)
    limit_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    rates: tuple[float, ...] = Field(min_length=1)
    finals: int = Field(ge=1)
    halving: bool = True
    runs: tuple[TrainingRun, ...] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> TrainingRace:
        for run in self.runs:
            if run.candidate >= len(self.candidates):
                last = len(self.candidates) - 1
                raise ValueError(f"a run is of candidate {run.candidate}; the last is {last}")
        if self.candidates[0].placement is not None:
            raise ValueError("the first candidate of a race has to be plain PyTorch")
        if self.target_loss is not None and self.target_seconds is not None:
            raise ValueError("a race has either a loss or a time as its target")
        return self

    @property
    def curves(self) -> dict[Training, Curve]:
        """The curve of every training so far."""
        return {run.training: run.curve for run in self.runs}

    @property
    def unrun(self) -> TrainingRace:
        """A copy as it was before any training."""
        return self.model_copy(update={"runs": ()})

    def with_curve(self, training: Training, curve: Curve) -> TrainingRace:
        """Return a copy that knows one more curve, or a longer one."""
        curves = self.curves | {training: curve}
        runs = (TrainingRun(**of._asdict(), curve=found) for of, found in curves.items())
        return self.model_copy(update={"runs": tuple(runs)})
