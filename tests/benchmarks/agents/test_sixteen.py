"""The study of sixteen measurements: its graphs, its tables, and a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.learning.branching_graphs import NAMES, graph_of
from benchmarks.learning.policy_proposals import PROPOSED
from benchmarks.sixteen.__main__ import app, calibration, expectations, gaps, summary
from benchmarks.sixteen.design import cells_of
from benchmarks.sixteen.paired import paired
from benchmarks.sixteen.runs import GRAPHS, Cell, Instance, Run, Step, run
from drlpp.agents.transfer.weights import PRETRAINED
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.planners.model_based.recalibration import Recalibration

CELL = Cell(
    graph="towers-40",
    accelerators=3,
    bandwidth=5e8,
    wrong=True,
    unequal=False,
    noise=0.01,
    seed=0,
)


FOUND = Run(
    cell=CELL,
    best_known=1.0,
    planned=1.5,
    best_plan=1.1,
    steps=(
        Step(seconds=1.2, gain=0.1, sureness=0.2),
        Step(seconds=1.005, gain=0.0, sureness=0.9),
    ),
    settled=True,
    sureness=0.9,
    took_seconds=100.0,
    cluster_seconds=60.0,
    saved_seconds=15.0,
)


@pytest.mark.parametrize("name", NAMES)
def test_graphs_branch_and_have_the_size_that_is_asked_for(name: str) -> None:
    graph = graph_of(name).graph
    assert 40 <= len(graph) <= 150
    assert len(graph.edges) > len(graph) - 1
    assert all(edge.source < edge.target for edge in graph.edges)
    assert graph_of(name) == graph_of(name)


def test_what_is_expected_stands_beside_what_is_left() -> None:
    steps = [(1.2, 0.1), (1.2, 0.2), (1.1, 0.3), *[(1.1, 0.01)] * 9, (1.1, 0.001)]
    made = [Step(seconds=seconds, gain=gain, sureness=0.5) for seconds, gain in steps]
    table = expectations([FOUND.model_copy(update={"steps": tuple(made)})])
    assert table.iloc[:, 0].tolist() == ["0 to 1", "2", "3 to 7", "8 or more"]
    assert table["times"].tolist() == ["4", "1", "5", "2"]
    # 0.1, 0.2, 0.3 and 0.01 of beliefs after a gain, or a measurement later; 1 − 1/1.2 twice is
    # left, and 1 − 1/1.1.
    assert table["expected, %"].tolist() == ["15.3", "1.0", "1.0", "1.0"]
    assert table["left, %"].tolist() == ["12.9", "9.1", "9.1", "9.1"]


def test_a_round_has_every_combination_and_twelve_have_every_pair() -> None:
    def pairs(rounds: int) -> list[tuple[object, ...]]:
        cells = cells_of(
            NAMES, (4, 8, 16), (1e8, 1e9, 1e10), (False, True), (False, True), 0, rounds
        )
        return [(c.graph, c.accelerators, c.bandwidth, c.wrong, c.unequal, c.seed) for c in cells]

    one = pairs(1)
    assert len({pair[1:] for pair in one}) == len(one) == 36
    assert Counter(pair[0] for pair in one) == dict.fromkeys(NAMES, 3)
    twelve = pairs(12)
    assert twelve[:36] == one
    assert len(set(twelve)) == len(twelve) == 36 * 12
    assert {pair[5] for pair in twelve} == {0}
    assert {pair[5] for pair in pairs(60)} == set(range(5))
    assert len({pair[:2] for pair in one}) > 2 * len(NAMES) - 4


def test_tables_say_what_runs_found() -> None:
    found = FOUND
    assert [found.gap(count) for count in (0, 1, 2, 16)] == pytest.approx([0.5, 0.2, 0.005, 0.005])
    (line,) = gaps([found]).to_dict("records")
    assert line["0: median / worst (within 1%)"] == "50.0 / 50.0 (0%)"
    assert line["16: median / worst (within 1%)"] == "0.5 / 0.5 (100%)"
    (line,) = gaps([found.model_copy(update={"settled": False})]).to_dict("records")
    assert [key[:3] for key in line if "within" in key] == ["0: "]
    # A run that did not go on is not left out of a column, but the column is.
    (line,) = gaps([found, found.model_copy(update={"settled": False})]).to_dict("records")
    assert [key[:3] for key in line if "within" in key] == ["0: "]
    rows = {row["sure"]: row for row in calibration([found]).to_dict("records")}
    assert rows["0% to 50%"]["after every measurement"] == "0% of 1"
    assert rows["80% to 95%"]["at the end"] == "100% of 1"
    assert "100% of 1 runs" in summary([found])
    assert "data parallelism: 0" in summary([found])
    fast = CELL.model_copy(update={"bandwidth": 12e9})
    others = found.model_copy(update={"cell": fast, "saved_seconds": 0.0, "cluster_seconds": 15.0})
    saved = "saves 20% of all that: 25% at 500 MB/s, 0% at 12000 MB/s."
    assert summary([others, found]).endswith(saved)


@pytest.mark.parametrize("graph", ["vgg16", "gnmt8"])
def test_profiles_of_the_zoo_are_graphs_as_well(graph: str) -> None:
    assert graph in GRAPHS
    instance = Instance(CELL.model_copy(update={"graph": graph}))
    assert len(instance.declared.workload) == len(instance.profile.graph)
    declared, true = (p.workload.seconds for p in (instance.declared, instance.true))
    assert all((declared != true)[true > 0])


@pytest.mark.slow
def test_a_run_is_never_faster_than_the_best_known() -> None:
    found = run(CELL, budget=2, starts=1, evaluations=60)
    assert len(found.steps) == 2
    assert found.gap(0) >= 0
    assert found.gap(2) >= 0
    assert found.best_plan >= found.best_known


def test_two_runs_of_a_cell_are_compared_by_the_best_that_either_knows() -> None:
    other = FOUND.model_copy(update={"best_known": 0.8, "planned": 1.6, "steps": FOUND.steps[:1]})
    rows = {row["measurements"]: row for row in paired([FOUND], [other]).to_dict("records")}
    assert rows["0"]["median / worst"] == "87.5 / 87.5"
    assert rows["0"]["the others'"] == "100.0 / 100.0"
    assert rows["0"]["better / equal / worse"] == "1 / 0 / 0"
    assert rows["16"]["median / worst"] == "25.6 / 25.6"
    assert rows["16"]["the others'"] == "50.0 / 50.0"
    (_, *_, last) = paired([FOUND, FOUND], [FOUND, FOUND]).to_dict("records")
    assert last["better / equal / worse"] == "0 / 2 / 0"
    assert last["difference"] == "equal"


def test_runs_with_and_without_a_policy_have_files_of_their_own(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    results.write_text(FOUND.model_dump_json() + "\n")
    asked = ["run", "--results", str(results), "--policy", str(PRETRAINED)]
    with pytest.raises(InvalidInput, match="runs with no policy, and these are with transfer"):
        CliRunner().invoke(app, asked, catch_exceptions=False)


@pytest.mark.slow
def test_a_policy_proposes_before_every_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    propose = Recalibration.propose

    def spied(
        self: Recalibration, count: int, candidates: Sequence[Candidate] = ()
    ) -> list[Candidate]:
        seen.append((len(self.measured), len(candidates)))
        return propose(self, count, candidates)

    monkeypatch.setattr(Recalibration, "propose", spied)
    found = run(CELL, 2, 1, 50, PRETRAINED)
    assert len(found.steps) == 2
    assert seen == [(0, PROPOSED), (1, PROPOSED)]
