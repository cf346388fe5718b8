"""The file of a race to a loss: who took part, and every evaluation so far."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import ClassVar

from pydantic import Field, model_validator

from drlpp.comparison.contenders import Contender
from drlpp.io.documents import Document, Record
from drlpp.io.quantities import Count
from drlpp.specs.class_options import option_text
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.training_race.curves import Curve
from drlpp.training_race.halving import Training


class Racer(Contender):
    """Who takes part in a race to a loss: a contender, which may have an optimizer of its own.

    Attributes:
        optimizer: its own, with a learning rate (:meth:`OptimizerSpec.with_rate`), around which
            its rates are tried; None for the race's.
    """

    optimizer: OptimizerSpec | None = None

    @classmethod
    def made_of(cls, contender: Contender) -> Racer:
        """Return a contender as one who takes part, with the race's optimizer if it has none."""
        return cls.model_validate(dict(contender))

    @property
    def optimizer_text(self) -> str:
        """Its own optimizer as a user names it, without the learning rate; else nothing."""
        if self.optimizer is None:
            return ""
        options = self.optimizer.options.items()
        given = [f"{key}={option_text(value)}" for key, value in options if key != "lr"]
        return " ".join([self.optimizer.name, *given])

    @property
    def layout(self) -> str:
        """Replicas per stage and microbatches, or the threads of plain PyTorch."""
        return super().configuration

    @property
    def configuration(self) -> str:
        """The layout, and its own optimizer."""
        return f"{self.layout}, {self.optimizer_text}" if self.optimizer else self.layout

    @property
    def told(self) -> str:
        """What tells it from others with the same stages and microbatches."""
        return (
            self.configuration if self.placement is None else f"{self.configuration}, {self.method}"
        )

    @property
    def key(self) -> Hashable:
        """A key that is equal for those that train alike."""
        return super().key, self.optimizer_text, self.own_rate

    @property
    def own_rate(self) -> float | None:
        """The learning rate of its own optimizer; None without one."""
        rate = self.optimizer and self.optimizer.options.get("lr")
        return rate if isinstance(rate, int | float) else None

    @model_validator(mode="after")
    def _own_optimizer_has_a_rate(self) -> Racer:
        if self.optimizer is not None and (self.own_rate or 0) <= 0:
            raise ValueError(
                f"optimizer {self.optimizer_text} of {self.found_by} has lr = "
                f"{self.optimizer.options.get('lr')}; expected a number above 0"
            )
        return self


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
    """A race to a loss, of one model on the same accelerators.

    Attributes:
        model, data, optimizer: their names.
        minibatches: of an epoch.
        every: minibatches between two evaluations.
        candidates: who takes part; plain PyTorch is the first.
        target_loss: what has to be reached first.
        target_seconds: instead of it, after how long the least loss wins.
        epochs: with neither, the target is the least loss of plain PyTorch in so many epochs.
        limit_seconds: of training, after which every candidate stops.
        rates: learning rates that every candidate tries, the race's optimizer's in the middle.
        finals: trainings of a finalist.
        halving: whether candidates end before the goal.
        runs: what was trained so far.
    """

    kind: ClassVar[str] = "training race"
    former_fields: ClassVar[frozenset[str]] = frozenset({"absent"})

    model: str
    data: str
    optimizer: str
    minibatches: int = Field(ge=1)
    every: int = Field(ge=1)
    candidates: tuple[Racer, ...] = Field(min_length=1)
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
    def plain(self) -> frozenset[int]:
        """The numbers of plain PyTorch, once for each optimizer."""
        return frozenset(i for i, one in enumerate(self.candidates) if one.placement is None)

    @property
    def scales(self) -> Mapping[int, float]:
        """What the rates are multiplied with for those that have an optimizer of their own."""
        middle = self.rates[len(self.rates) // 2]
        return {
            number: one.own_rate / middle
            for number, one in enumerate(self.candidates)
            if one.own_rate is not None
        }

    @property
    def unrun(self) -> TrainingRace:
        """A copy as it was before any training."""
        return self.model_copy(update={"runs": ()})

    def with_curve(self, training: Training, curve: Curve) -> TrainingRace:
        """Return a copy that knows one more curve, or a longer one."""
        curves = self.curves | {training: curve}
        runs = (TrainingRun(**of._asdict(), curve=found) for of, found in curves.items())
        return self.model_copy(update={"runs": tuple(runs)})
