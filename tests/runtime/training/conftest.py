"""Trainers of tests capture the same few models hundreds of times: here each is captured once."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import Model, ModelReference


@pytest.fixture(scope="session", autouse=True)
def _captured_once() -> Iterator[None]:
    known: dict[tuple[str, int], CapturedModel] = {}

    def captured(model: Model, *, seed: int) -> CapturedModel:
        if not isinstance(model, ModelReference) or "tests.support" not in model.name:
            return capture(model, seed=seed)
        key = model.model_dump_json(), seed
        if key not in known:
            known[key] = capture(model, seed=seed)
        with warnings.catch_warnings():
            # Of torch about itself.
            warnings.simplefilter("ignore", FutureWarning)
            return copy.deepcopy(known[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drlpp.runtime.training.training.capture", captured)
        yield


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
