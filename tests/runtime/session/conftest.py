"""The model of most tests here: a perceptron."""

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference


@pytest.fixture(scope="session")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron"))
