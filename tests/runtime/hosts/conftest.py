"""A Ray cluster of two nodes for the tests of a file, and a model on it."""

from collections.abc import Iterator

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from tests.support.programs.ray_clusters import RayCluster, ray_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster((2, 2)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))
