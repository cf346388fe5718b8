"""Files that commands are given, by the words that stand for them in a test."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.io.documents import write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.strategies.graphs import chain_of, profile_of

PERCEPTRON = "tests.support.models.small:perceptron"
CLUSTER = """\
kind: cluster
version: 1
hosts:
  - {name: fast, count: 2, accelerators: 2, device: cuda, memory_bytes: 16000000000}
  - {name: slow, accelerators: 1, speed: 0.5, network: {bandwidth_bytes_per_second: 1.0e8}}
within_host: {bandwidth_bytes_per_second: 1.2e10, latency_seconds: 5.0e-6}
between_hosts: {bandwidth_bytes_per_second: 1.25e9, latency_seconds: 5.0e-5}
"""


@pytest.fixture(scope="session")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A placement on two hosts, profiles of its model and of a chain, a cluster."""
    folder = tmp_path_factory.mktemp("written")
    link = Link(bandwidth_bytes_per_second=1e6)
    model = ModelReference.named(PERCEPTRON, layers=2)
    graph = capture(model, check=False).graph
    placement = PlacementFile.create(
        model,
        graph,
        Placement.from_assignment([0, 0, 0, 1, 1], (0, 1)),
        Cluster(
            hosts=tuple(Host(name=name, accelerators=1) for name in ("near", "far")),
            within_host=link,
            between_hosts=link,
        ),
        method=Method(),
        optimizer=OptimizerSpec(),
        found_by="test",
    )
    _, chain = chain_of(seconds=[6, 3, 3], parameter_bytes=[4, 10, 400], output_bytes=[5, 7, 1])
    cluster = folder / "accelerators.yaml"
    cluster.write_text(CLUSTER)
    return {
        "PLACEMENT": write_document(folder / "placement.json", placement),
        "PROFILE": write_document(folder / "costs.json", profile_of(graph, [3e-3] * 5)),
        "CHAIN": write_document(folder / "chain.json", chain),
        "CLUSTER": cluster,
    }


@pytest.fixture
def files(written: dict[str, Path], tmp_path: Path) -> dict[str, Path]:
    """A copy of what is written, to change."""
    return {word: Path(shutil.copy(path, tmp_path)) for word, path in written.items()}
