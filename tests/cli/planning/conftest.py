"""What tests of planning commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from drlpp.io.documents import write_document
from tests.support.planning.command_inputs import CLUSTER
from tests.support.strategies.graphs import chain_of


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    _, found = chain_of(seconds=[6, 3, 3], parameter_bytes=[4, 10, 400], output_bytes=[5, 7, 1])
    return write_document(tmp_path / "profile.json", found)


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path
