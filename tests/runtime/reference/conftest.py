"""The forked model, captured, and a session of four workers that has its samples."""

from collections.abc import Iterator

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession
from tests.support.models.forked import samples


@pytest.fixture(scope="package")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="package")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    with ClusterSession(captured, workers=4) as session:
        session.use_samples(*samples())
        yield session
