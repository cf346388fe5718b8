"""Placement files, and the tables that describe every file of the project."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from drlpp.capturing.graph import OpGraph, SharedParameter
from drlpp.cli.showing.tables import describe
from drlpp.errors import InvalidPlacement
from drlpp.io.documents import Document, read_any_document, read_document, write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.strategies.graphs import graph_of, graphs, placements, profile_of

GRAPH = graph_of(
    [(0, 1), (0, 2), (1, 3), (2, 3)],
    parameter_bytes=[1000, 2000, 0, 4000],
    output_bytes=[10, 20, 30, 40],
)
TIED = GRAPH.model_copy(
    update={"shared_parameters": (SharedParameter(name="words", bytes_=1000, operators=(0, 1)),)}
)
CLUSTER = Cluster(
    hosts=(Host(name="box", accelerators=2), Host(name="other", accelerators=2, device="cuda")),
    within_host=Link(bandwidth_bytes_per_second=2.5e9, latency_seconds=2e-5),
    between_hosts=Link(bandwidth_bytes_per_second=1e8),
)
PROFILE = profile_of(GRAPH, [0.03, 0.06, 0.0, 0.01])


def file_for(graph: OpGraph, placement: Placement, measured: bool = True) -> PlacementFile:
    return PlacementFile.create(
        ModelReference(name="alexnet", options={"width": 0.25}),
        graph,
        placement,
        CLUSTER,
        method=Method(policy="stash"),
        optimizer=OptimizerSpec(name="adam", options={"lr": 0.01}),
        found_by="pipedream",
        measurement=Measurement(
            seconds_per_minibatch=0.0367,
            median_seconds=0.0366,
            standard_deviation_seconds=0.0012,
            minibatches=30,
        )
        if measured
        else None,
    )


FILE = file_for(GRAPH, Placement.from_assignment([0, 0, 1, 1], [0, 0, 1, 1]))


@given(st.data())
def test_a_placement_survives_its_file(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    placement = data.draw(placements(graph, accelerators=4))
    assert file_for(graph, placement).resolve(graph) == placement


@pytest.mark.parametrize("name", ["placement.json", "placement.yaml"])
@pytest.mark.parametrize("measured", [True, False])
def test_a_placement_file_is_read_as_written(tmp_path: Path, name: str, measured: bool) -> None:
    file = file_for(GRAPH, FILE.resolve(GRAPH), measured)
    path = write_document(tmp_path / name, file)
    assert read_document(path, PlacementFile) == file
    assert read_any_document(path) == file


def test_a_placement_for_another_model_is_refused() -> None:
    other = graph_of([(0, 1)], parameter_bytes=[1, 1], output_bytes=[1, 1])
    with pytest.raises(InvalidPlacement) as caught:
        FILE.resolve(other)
    for part in (GRAPH.fingerprint, other.fingerprint, "alexnet(width=0.25)", "made-up"):
        assert part in str(caught.value)


def rendered(renderable: RenderableType) -> str:
    console = Console(width=120, file=StringIO(), markup=False)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


@pytest.mark.parametrize(
    ("document", "parts"),
    [
        (GRAPH, ["op3", "linear", "layers.3", "4.0 kB", "caller", "4 operators, 4 edges, 7.0 kB"]),
        (TIED, ["6.0 kB of parameters", "operators 0, 1 share words (1.0 kB), each stage a copy"]),
        (PROFILE, ["20.00 ms", "40.00 ms", "60.0%", "4 operators, 100.00 ms per minibatch"]),
        (CLUSTER, ["other", "cuda", "2 to 3", "2.5 GB/s, latency 20.00 µs", "100.0 MB/s"]),
        (FILE, ["alexnet(width=0.25)", "2-2", "found by pipedream", "36.70 ms", "op2, op3"]),
        (FILE, ["1f1b, stash", "lr=0.01", "betas=[0.9, 0.999]", GRAPH.fingerprint, "2 to 3"]),
    ],
)
def test_every_document_is_described(document: Document, parts: list[str]) -> None:
    text = rendered(describe(document))
    for part in parts:
        assert part in text


def test_names_with_brackets_are_printed_as_they_are() -> None:
    operator = GRAPH.operators[0].model_copy(update={"name": "[bold]layer"})
    graph = GRAPH.model_copy(update={"operators": (operator, *GRAPH.operators[1:])})
    assert "[bold]layer" in rendered(describe(graph))
