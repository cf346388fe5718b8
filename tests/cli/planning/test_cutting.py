"""``--cut-at``: plans and agents that keep modules whole, and what that costs."""

from __future__ import annotations

import json
import re
from pathlib import Path

from drlpp import ModelReference, Placement, read_placement
from drlpp.capturing.capture import capture
from drlpp.capturing.graph import OpGraph
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.io.documents import write_document
from tests.support.programs.shell import Shell

MODEL = "tests.exporting.decoder:decoder"


def stages_of_layers(graph: OpGraph, placement: Placement) -> dict[str, set[int]]:
    """The stages of every layer's operators."""
    found: dict[str, set[int]] = {}
    for number, stage in enumerate(placement.stages):
        for op in stage.operators:
            if match := re.match(r"layers\.\d", graph.operators[op].module):
                found.setdefault(match[0], set()).add(number)
    return found


def test_a_plan_keeps_layers_whole_and_says_what_that_costs(shell: Shell, tmp_path: Path) -> None:
    graph = capture(ModelReference.named(MODEL)).graph
    costs = write_document(tmp_path / "profile.json", estimate_profile(graph))
    arguments = ("plan", MODEL, "--profile", costs, "--workers", 4, "--bandwidth", 1e12)
    arguments = (*arguments, "--planner", "gpipe")
    written = tmp_path / "placement.json"
    code, out, error = shell(*arguments, "--cut-at", "layers", "--json")
    assert code == 0, error
    layers = json.loads(out)
    finer = json.loads(shell(*arguments, "--json")[1])
    seconds = [r["simulated_seconds_per_minibatch"] for r in (layers, finer)]
    assert seconds[0] > seconds[1]
    assert f"whole layers cost {seconds[0] / seconds[1] - 1:+.1%} (simulated)" in layers["cut_at"]
    assert layers["stages"][0]["operators"][0] == "before"
    code, out, _ = shell(*arguments, "--cut-at", "layers", "-o", written)
    assert layers["cut_at"] in out
    placement = read_placement(written).resolve(graph)
    assert len(placement.stages) == 4
    of_layers = stages_of_layers(graph, placement)
    assert len(of_layers) == 6
    assert all(len(stages) == 1 for stages in of_layers.values())
    code, _, error = shell("plan", *arguments[2:], "--cut-at", "modules")
    assert (code, "name the MODEL" in error) == (2, True)


def test_a_profile_alone_is_enough_to_keep_blocks_whole(shell: Shell, tmp_path: Path) -> None:
    graph = capture(ModelReference.named(MODEL)).graph
    costs = write_document(tmp_path / "profile.json", estimate_profile(graph))
    code, out, error = shell(
        *("plan", "--profile", costs, "--workers", 4, "--bandwidth", 1e12),
        *("--planner", "exact", "--cut-at", "blocks"),
    )
    assert code == 0, error
    assert re.search(r"cut between \d+ blocks: .* so whole blocks cost \+?-?\d", out), out
