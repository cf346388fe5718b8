"""The study of placements elsewhere: its cuts, its tables, and a bundle that it executes."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.elsewhere.__main__ import BEGIN, END, app
from benchmarks.elsewhere.cases import MODELS, SPLITS, balanced, captured, split
from benchmarks.elsewhere.results import (
    Line,
    SpeedRow,
    TrainedRow,
    refusals,
    speed_table,
    weights_table,
)
from benchmarks.elsewhere.study import METHODS, Study
from benchmarks.machine import this_machine
from drlpp.cells import read_results_of
from drlpp.costs.profiles.estimated_profile import estimate_profile
from drlpp.errors import RunFailure
from drlpp.io.json_lines import append
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


def trained(model: str, ranks: int, **found: object) -> TrainedRow:
    row = {"model": model, "ranks": ranks, "method": "stash", "configuration": "1-1"}
    return TrainedRow.model_validate(row | found)


def timed(cut: str, torch: tuple[float, ...], ours: tuple[float, ...] = ()) -> SpeedRow:
    return SpeedRow(
        model="vgg16",
        method="1f1b-flush",
        split=cut,
        configuration="1-1",
        speeds=(1.0, 1.0),
        minibatches=40,
        torch=torch,
        ours=ours,
    )


def test_tables() -> None:
    rows = [
        trained("vgg16", 2, difference=1e-12, moved=0.1),
        trained("gpt2-tied", 2, refused="stages share"),
        trained("gpt2-tied", 4, refused="stages share"),
    ]
    assert list(weights_table(rows)["largest difference"]) == ["1.0e-12", "refused", "refused"]
    assert refusals(rows) == ["gpt2-tied with stash: stages share"]
    refused = timed("parameters", ()).model_copy(update={"refused": "stages share"})
    table = speed_table([[timed("plan", (1, 2, 4), (1, 1, 2)), timed("even", (3, 3, 8)), refused]])
    assert list(table["in torch"]) == ["2.00 s", "3.00 s", "refused"]
    assert list(table["over the plan"]) == ["1.00×", "2.00×", "–"]
    assert list(table["torch over ours"]) == ["2.00×", "–", "–"]


def test_a_cell_that_is_in_the_file_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of three trainings is there, another fails, and the next call runs that alone."""
    file, document = tmp_path / "found.jsonl", tmp_path / "page.md"
    document.write_text(f"{BEGIN}\n{END}\n")
    append(file, Line(machine=this_machine(), trained=trained("vgg16, tiny", 2, difference=0.5)))
    asked: list[str] = []

    def weights(self: Study, name: str, ranks: int, method: str) -> TrainedRow:
        asked.append(method)
        if method == "pipeoptim" and len(asked) < 3:
            raise RunFailure("a rank failed")
        return trained(self.title(name), ranks, method=method, difference=0.25)

    monkeypatch.setattr(Study, "weights", weights)
    command = ["--models", "vgg16", "--ranks", "2", "--rounds", "0", "--tiny"]
    command += ["--results", str(file), "--document", str(document)]
    first = CliRunner().invoke(app, command)
    assert isinstance(first.exception, RunFailure)
    assert asked == ["1f1b-flush", "pipeoptim"]
    assert CliRunner().invoke(app, command).exit_code == 0
    assert asked == ["1f1b-flush", "pipeoptim", "pipeoptim"]
    found = read_results_of("benchmarks.elsewhere", Line, file)
    assert [line.trained.method for line in found if line.trained] == [
        "stash",
        "1f1b-flush",
        "pipeoptim",
    ]
    assert document.read_text().count("| vgg16, tiny | 2 |") == 3


@pytest.mark.system
def test_all_cuts_are_timed_in_as_many_rounds(tmp_path: Path) -> None:
    rows = Study(tmp_path, True, 2, 4, print).speeds("gpt2", (0.9, 0.45))
    assert len(rows) == 2 * len(SPLITS)
    assert {len(row.torch) for row in rows} == {2}
    assert {row.split for row in rows if len(row.ours) == 2} == {"plan"}
    assert "1.00×" in set(speed_table([rows])["over the plan"])


@pytest.mark.system
def test_tied_weights_are_trained_by_torch_as_by_the_reference(tmp_path: Path) -> None:
    study = Study(tmp_path, True, 0, 8, print)
    found = {method: study.weights("gpt2-tied", 2, method) for method in ("1f1b-flush", "stash")}
    difference = found["1f1b-flush"].difference
    assert difference is not None
    assert difference < 1e-10
    assert found["1f1b-flush"].moved > 1e-3
    assert "whose copies an asynchronous export" in found["stash"].refused
