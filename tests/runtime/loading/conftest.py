"""A small model to load minibatches for, captured."""

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference


@pytest.fixture(scope="package")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron", layers=2))
