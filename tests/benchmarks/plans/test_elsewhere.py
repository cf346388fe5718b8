"""The study of placements elsewhere: its cuts, its tables, and a bundle that it executes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.elsewhere.cases import MODELS, SPLITS, balanced, captured, split
from benchmarks.elsewhere.study import (
    METHODS,
    SpeedRow,
    Study,
    TrainedRow,
    refusals,
    speed_table,
    weights_table,
)
from drlpp.costs.estimated_profile import estimate_profile
from drlpp.specs.cluster import Link, local_cluster


def cuts(weights: list[float], stages: int) -> list[tuple[int, ...]]:
    return [stage.operators for stage in balanced(weights, stages).stages]


def test_cuts_are_where_sums_are_nearest_to_equal_shares() -> None:
    assert cuts([1.0] * 6, 3) == [(0, 1), (2, 3), (4, 5)]
    assert cuts([4.0, 1.0, 1.0, 1.0, 1.0], 2) == [(0,), (1, 2, 3, 4)]
    assert cuts([0.0, 0.0, 8.0], 3) == [(0,), (1,), (2,)]
    assert cuts([1.0, 9.0, 1.0, 1.0], 2) == [(0, 1), (2, 3)]


def test_every_model_is_cut_in_every_way() -> None:
    """The study's own tiny GPT-2; ``plan`` may leave accelerators idle."""
    assert set(MODELS) == {"vgg16", "gnmt8", "gpt2", "gpt2-tied", "googlenet"}
    graph = captured("gpt2", tiny=True, float64=False).graph
    profile, cluster = (
        estimate_profile(graph),
        local_cluster(3, Link(bandwidth_bytes_per_second=1e9)),
    )
    for name in SPLITS:
        placement = split(name, graph, profile, cluster, METHODS["1f1b-flush"])
        placement.validate_for(graph, 3)
        assert name == "plan" or placement.configuration == "1-1-1"


def test_tables() -> None:
    trained = [
        TrainedRow("vgg16", 2, "stash", "1-1", 1e-12, 0.1),
        TrainedRow("gpt2-tied", 2, "stash", "1-1", refused="stages share"),
        TrainedRow("gpt2-tied", 4, "stash", "1-1", refused="stages share"),
    ]
    assert list(weights_table(trained)["largest difference"]) == ["1.0e-12", "refused", "refused"]
    assert refusals(trained) == ["gpt2-tied with stash: stages share"]
    plan = SpeedRow(
        "vgg16", "1f1b-flush", "plan", "1-1", (1.0, 1.0), [1.0, 2.0, 4.0], [1.0, 1.0, 2.0]
    )
    even = SpeedRow("vgg16", "1f1b-flush", "even", "1-1", (1.0, 1.0), [3.0, 3.0, 8.0])
    table = speed_table([plan, even])
    assert list(table["in torch"]) == ["2.00 s", "3.00 s"]
    assert list(table["over the plan"]) == ["1.00×", "2.00×"]
    assert list(table["torch over ours"]) == ["2.00×", "–"]


@pytest.mark.system
def test_tied_weights_are_trained_by_torch_as_by_the_reference(tmp_path: Path) -> None:
    rows = list(Study(tmp_path, True, 0, 8, print).weights("gpt2-tied", 2))
    found = {row.method: row for row in rows}
    difference = found["1f1b-flush"].difference
    assert difference is not None
    assert difference < 1e-10
    assert found["1f1b-flush"].moved > 1e-3
    assert "whose copies an asynchronous export" in found["stash"].refused
