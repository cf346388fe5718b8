"""The model that counts its samples, captured."""

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from tests.support.models.counting import counting


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(counting))
