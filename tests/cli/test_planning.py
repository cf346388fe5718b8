"""``drlpp plan`` and ``profile``, as a user types them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from drlpp import simulate
from drlpp.capturing.capture import capture
from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import Profile, RunFactors
from drlpp.costs.workload import Workload
from drlpp.exporting.layouts.module_cuts import read_layout
from drlpp.io.documents import read_document, write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement_file import read_placement
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Link, local_cluster
from tests.support.programs.shell import as_json, both, done, drlpp

PERCEPTRON = "tests.support.models.small:perceptron"
DECODER = "tests.exporting.decoder:decoder"
LINKS = ("--workers", 2, "--bandwidth", 10)
GPIPE = ("--planner", "gpipe")
NOAM = ("--method-option", "in_flight_per_link=0")
TABLE = """\
name,forward_ms,backward_ms,output_bytes,parameter_bytes
Conv,2.0,4.0,8,4
Linear,1.0,2.0,8,400
"""


@pytest.fixture
def profile(files: dict[str, Path]) -> Path:
    return files["CHAIN"]


def test_a_plan_is_explained(profile: Path) -> None:
    text = done("plan", "--profile", profile, *LINKS, *GPIPE, *NOAM).words
    assert "planned by gpipe" in text
    assert "simulated: 6.50 s per minibatch in steady state, 8.3% above the rule's bound" in text
    assert "bound: 6.00 s per minibatch, compute of stage 0" in text
    assert "memory: stage 1 is the tightest" in text


def test_dollars_are_counted_and_room_is_told(files: dict[str, Path]) -> None:
    """Four accelerators at 7.2 dollars an hour and one at 3 take 4.8 s, and hold 16 GB each."""
    cluster = files["CLUSTER"]
    text = cluster.read_text().replace("count: 2,", "count: 2, price: 7.2,")
    cluster.write_text(text.replace("speed: 0.5,", "speed: 0.5, price: 3,"))
    given = ("plan", "--profile", files["CHAIN"], "--cluster", cluster)
    given = (*given, "--planner", "data-parallel", "--objective", "dollars")
    told = done(*given).words
    # 1e6 · 4.8 · 31.8 / 3600, and a little for messages.
    assert re.search(r"a million minibatches cost 42,40\d\.\d\d dollars", told)
    assert "16.0 GB to spare" in told
    assert "also proposed" not in told
    cluster.write_text(cluster.read_text().replace("16000000000", "1000"))
    assert "needs" in drlpp(*given).refusal


def test_every_prediction_has_the_error_bar_of_short_runs(profile: Path, tmp_path: Path) -> None:
    """Replicas were off by a quarter, pipelines by 6%, and a single accelerator is not known."""
    costs = read_document(profile, Profile)
    factors = {
        "in_pipeline": RunFactors(spread=0.06),
        "replicated": RunFactors(seconds=1.02, spread=0.25),
    }
    known = write_document(tmp_path / "known.json", costs.model_copy(update=factors))
    found, text = both("plan", "--profile", known, *LINKS, "--objective", "seconds")
    bars = {(plan["configuration"], plan["error_bar"]) for plan in (found, *found["others"])}
    assert bars == {("1", None), ("1-1", 0.06), ("2", 0.25)}
    assert re.search(r"simulated: [0-9.]+ s ± 6% per minibatch in steady state", text)
    assert re.search(r"also proposed .*data-parallel 2 [0-9.]+ s ± 25%", text)
    assert "one accelerator 1 12.00 s" in text
    assert "one accelerator 1 12.00 s ±" not in text
    # A profile without short runs says nothing of it.
    assert "±" not in done("plan", "--profile", profile, *LINKS).out


def test_the_search_is_the_default_and_no_slower_than_any_baseline(profile: Path) -> None:
    """In the simulator; a link of 1 byte/s needs more in flight."""
    links = ("--workers", 3, "--bandwidth", 2)
    found, text = both("plan", "--profile", profile, *links, "--objective", "seconds")
    assert found["method"] == "search"
    seconds = found["simulated_seconds_per_minibatch"]
    assert all(seconds <= other["simulated_seconds_per_minibatch"] for other in found["others"])
    assert {"data-parallel", "one accelerator"} <= {o["method"] for o in found["others"]}
    assert "also proposed (simulated): " in text


def test_a_table_of_costs_and_unequal_accelerators(tmp_path: Path) -> None:
    path = tmp_path / "costs.csv"
    path.write_text(TABLE)
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1e5), [0.5, 1.0])
    known = write_document(tmp_path / "cluster.yaml", cluster)
    unequal = as_json("plan", "--profile", path, "--cluster", known)
    assert unequal["seconds_per_minibatch"] == pytest.approx(0.006)
    assert [stage["accelerators"] for stage in unequal["stages"]] == [[1], [0]]


def test_a_model_is_profiled_planned_and_trained(tmp_path: Path) -> None:
    """In a folder whose name needs quotes, by the command that the plan ends with."""
    folder = tmp_path / "a folder"
    costs, cluster, written = (folder / n for n in ("costs.json", "cluster.yaml", "placed.json"))
    folder.mkdir()
    small = ("--model-option", "layers=2")
    assert "5 operators" in done("profile", PERCEPTRON, *small, "-o", costs, "--workers", 2).words
    # The profile says what model it is of.
    told = done("plan", "--profile", costs, "--cluster", cluster, "-o", written).out
    placement = read_placement(written)
    assert (placement.found_by, placement.model) == (
        "search",
        ModelReference.named(PERCEPTRON, layers=2),
    )
    (said,) = re.findall(r"^train with it: drlpp (.*)$", told, re.MULTILINE)
    *words, _ = shlex.split(said)
    assert words == ["train", str(written), "--model", PERCEPTRON, "--data"]
    done(*words, "tests.support.models.small:separable", "--epochs", 1)


def test_a_profile_leaves_a_cluster_file_as_it_is(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_document(files["PROFILE"], Profile), read_document(files["CLUSTER"], Cluster)
    session = MagicMock()
    session.return_value.__enter__.return_value.profile.return_value = found
    monkeypatch.setattr("drlpp.cli.plan_command.ClusterSession", session)
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("mine")
    told = done("profile", PERCEPTRON, "-o", tmp_path / "profile.json").words
    assert "cluster.yaml exists already and stays as it is" in told
    assert cluster.read_text() == "mine"
    assert read_document(tmp_path / "profile.json", Profile) == found[0]


@pytest.fixture
def decoder(tmp_path: Path) -> tuple[OpGraph, Path]:
    """A decoder, and a profile with an error bar."""
    graph = capture(ModelReference.named(DECODER), check=False).graph
    costs = Profile.estimated(graph).model_copy(update={"in_pipeline": RunFactors(spread=0.06)})
    return graph, write_document(tmp_path / "profile.json", costs)


def test_a_plan_keeps_layers_whole(decoder: tuple[OpGraph, Path], tmp_path: Path) -> None:
    graph, costs = decoder
    written = tmp_path / "placement.json"
    given = ("plan", DECODER, "--profile", costs, "--workers", 4, "--bandwidth", 1e12)
    given = (*given, "--planner", "gpipe")
    finer = as_json(*given)["simulated_seconds_per_minibatch"]
    found, text = both(*given, "--cut-at", "layers", "-o", written)
    assert found["simulated_seconds_per_minibatch"] > finer
    assert re.search(r"cut between \d+ layers", text)
    held: dict[str, set[int]] = {}
    for number, stage in enumerate(read_placement(written).resolve(graph).stages):
        for op in stage.operators:
            if match := re.match(r"layers\.\d", graph.operators[op].module):
                held.setdefault(match[0], set()).add(number)
    assert [len(stages) for stages in held.values()] == [1] * 6
    # Blocks need no model.
    assert re.search(
        r"cut between \d+ blocks", done("plan", *given[2:], "--cut-at", "blocks").words
    )


def test_a_plan_says_what_a_users_layout_costs(decoder: tuple[OpGraph, Path]) -> None:
    graph, costs = decoder
    layout = "modules:layers.5"
    arguments = ("plan", DECODER, "--profile", costs, "--workers", 2, "--bandwidth", 1e9, *NOAM)
    record, text = both(*arguments, "--compare", layout)
    (own,) = record["compared"]
    placement = read_layout(layout, capture(ModelReference.named(DECODER)).task.module, graph, 2)
    cluster = local_cluster(2, Link(bandwidth_bytes_per_second=1e9))
    played = simulate(Workload.of(read_document(costs, Profile)), cluster, placement, Method())
    assert own["simulated_seconds_per_minibatch"] == played.seconds_per_minibatch
    assert own["error_bar"] == 0.06
    ratio = own["simulated_seconds_per_minibatch"] / record["simulated_seconds_per_minibatch"]
    assert ratio > 1.01
    assert f"your layout {layout}: " in text
    assert f" ± 6% per minibatch (simulated), {ratio - 1:+.0%} against the plan" in text
    # Also beside a plan between layers, which has other operators.
    assert (
        f"your layout {layout}: "
        in done(*arguments, "--compare", layout, "--cut-at", "layers").words
    )
