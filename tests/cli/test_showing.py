"""``drlpp show``: models, files, timelines of placements."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from hypothesis import given
from rich.console import Console, RenderableType

from drlpp.capturing.graph import OpGraph, SharedParameter
from drlpp.cli.descriptions import describe
from drlpp.costs.profile import Profile, RunFactors
from drlpp.io.documents import Document, read_document, write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.planning.fake_measurer import crossing_bytes
from tests.support.programs.shell import done
from tests.support.strategies.graphs import graph_of, graphs, profile_of
from tests.support.traces import checked

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
MEASURED = Measurement(
    seconds_per_minibatch=0.0367,
    median_seconds=0.0366,
    standard_deviation_seconds=0.0012,
    minibatches=30,
)
TIMELINE = ("show", "--model", "tests.support.models.small:perceptron", "--timeline")


def file_for(graph: OpGraph, placement: Placement) -> PlacementFile:
    return PlacementFile.create(
        ModelReference(name="alexnet", options={"width": 0.25}),
        graph,
        placement,
        CLUSTER,
        method=Method(policy="stash"),
        optimizer=OptimizerSpec(name="adam", options={"lr": 0.01}),
        found_by="pipedream",
        measurement=MEASURED,
    )


FILE = file_for(GRAPH, Placement.from_assignment([0, 0, 1, 1], [0, 0, 1, 1]))


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
        (profile_of(GRAPH, [0.03, 0.06, 0.0, 0.01]), ["20.00 ms", "60.0%", "4 operators, 100.00"]),
        (CLUSTER, ["name: other", "device: cuda", "2500000000.0", "between_hosts"]),
        (FILE, ["alexnet(width=0.25)", "2-2", "found by pipedream", "36.70 ms", "2: op2 … op3"]),
        (FILE, ["1f1b, stash", "lr=0.01", "betas=[0.9, 0.999]", GRAPH.fingerprint, "name: box"]),
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


def test_a_table_of_costs_and_the_options_of_a_run_are_shown(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("budget: 8\n")
    assert "budget: 8" in done("show", tmp_path / "run.yaml").words
    (tmp_path / "costs.csv").write_text("name,forward_ms,backward_ms\nhead,3,6\n")
    assert "head 3.00 ms" in done("show", tmp_path / "costs.csv").words


@given(graphs(max_operators=8))
def test_what_passes_a_cut_is_what_two_stages_send(graph: OpGraph) -> None:
    widths = graph.cut_widths()
    assert len(widths) == len(graph) - 1
    for place, width in enumerate(widths):
        stage_of = [int(op > place) for op in range(len(graph))]
        assert width == crossing_bytes(graph, stage_of)


def rows(printed: str) -> list[list[float]]:
    """The numbers of a table's rows: worker, stage, shares."""
    lines = [line.split() for line in printed.splitlines() if line.strip().endswith("%")]
    return [[float(cell.rstrip("%")) for cell in line] for line in lines]


def test_a_timeline_of_the_schedule(files: dict[str, Path]) -> None:
    shown = done(*TIMELINE, "schedule", files["PLACEMENT"], "--minibatches", 4, "--json")
    assert "3 per minibatch" in " ".join(shown.err.split())
    # Worker, stage, forward, backward, utilisation, bubble.
    assert rows(shown.err) == [[0, 0, 33.3, 66.7, 100, 0], [1, 1, 33.3, 66.7, 100, 0]]
    seconds = checked(json.loads(shown.out))
    assert seconds[0]["forward"] == 4
    assert seconds[1]["backward"] == 8
    hosts = [
        e["args"]["name"] for e in json.loads(shown.out)["traceEvents"] if e["name"][:4] == "proc"
    ]
    assert hosts == ["near", "far"]


def test_a_timeline_of_the_simulator(files: dict[str, Path]) -> None:
    costs = read_document(files["PROFILE"], Profile)
    costs = costs.model_copy(update={"in_pipeline": RunFactors(spread=0.06)})
    write_document(files["PLACEMENT"].with_name("profile.json"), costs)
    ended = done(*TIMELINE, "simulator", files["PLACEMENT"], "--json")
    shown = ended.err
    assert "9.00 ms ± 6% per minibatch" in shown
    seconds = checked(json.loads(ended.out))
    for worker, _, forward, backward, waiting, utilisation, bubble in rows(shown):
        mine = seconds[int(worker)]
        total = sum(mine.values())
        assert forward == pytest.approx(100 * mine["forward"] / total, abs=0.06)
        assert backward == pytest.approx(100 * mine["backward"] / total, abs=0.06)
        assert waiting == pytest.approx(100 * mine["waiting"] / total, abs=0.06)
        assert utilisation == pytest.approx(forward + backward, abs=0.11)
        assert bubble == pytest.approx(waiting, abs=0.06)


@pytest.mark.timeout(100)
def test_a_timeline_of_a_run(files: dict[str, Path]) -> None:
    ended = done(*TIMELINE, "run", files["PLACEMENT"], "--json")
    seconds = checked(json.loads(ended.out))
    for worker in (0, 1):
        for kind in ("forward", "backward", "update", "sending", "waiting"):
            assert seconds[worker][kind] > 0
    assert [row[:2] for row in rows(ended.err)] == [[0, 0], [1, 1]]
