"""Races to a loss for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from drlpp.racing.contenders import Contender
from drlpp.racing.training_race import TrainingRace
from drlpp.schedule.method import Method


def race_of(
    candidates: Iterable[Contender] | int, rates: tuple[float, ...], **given: Any
) -> TrainingRace:
    """A race over epochs of two minibatches, each evaluated, but for what is given."""
    usual = {"model": "a", "data": "digits", "optimizer": "adam", "minibatches": 2, "every": 1}
    if isinstance(candidates, int):
        candidates = [Contender(found_by="plain PyTorch", method=Method())] * candidates
    return TrainingRace.model_validate(
        {**usual, "finals": 3, "candidates": tuple(candidates), "rates": rates, **given}
    )
