"""Races to a loss for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drlpp.comparison.contenders import Contender
from drlpp.training_race.training_race_file import Racer, TrainingRace


def race_of(
    candidates: Iterable[Contender], rates: tuple[float, ...], **given: Any
) -> TrainingRace:
    """A race over epochs of two minibatches, each evaluated, but for what is given."""
    usual = {"model": "a", "data": "digits", "optimizer": "adam", "minibatches": 2, "every": 1}
    racers = tuple(map(Racer.made_of, candidates))
    return TrainingRace.model_validate(
        {**usual, "finals": 3, "candidates": racers, "rates": rates, **given}
    )
