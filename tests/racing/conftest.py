"""One session for the races of a file."""

from collections.abc import Iterator

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.classified_points import NAME


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named(f"{NAME}:classifier"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, 2, optimizer=OptimizerSpec.parse("adam", lr=0.01)) as session:
        yield session
