"""The study of search: its problems, its tables, and a run."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.search import STUDY
from benchmarks.search.graphs import NAMES, graph_of
from benchmarks.search.problems import GRAPHS, Case, measured_cases
from benchmarks.search.tables import (
    Found,
    Step,
    answer,
    calibration,
    expectations,
    gaps,
    plans_table,
)

CASE = Case(
    graph="towers-40",
    accelerators=3,
    bandwidth=5e8,
    wrong=True,
    unequal=False,
    noise=0.01,
    seed=0,
)


FOUND = Found(
    case=CASE,
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
    assert "100% of 1 cases" in answer([found])
    assert "data parallelism: 0" in answer([found])
    assert "saves 25% of that" in answer([found])


def test_rounds_have_every_combination_and_in_the_end_every_pair() -> None:
    def pairs(rounds: int) -> list[tuple[object, ...]]:
        cases = measured_cases(rounds)
        return [(c.graph, c.accelerators, c.bandwidth, c.wrong, c.unequal, c.seed) for c in cases]

    one = pairs(1)
    assert len({pair[1:] for pair in one}) == len(one) == 36
    assert max(Counter(pair[0] for pair in one).values()) == 2
    every = pairs(len(GRAPHS))
    assert every[:36] == one
    assert len(set(every)) == len(every) == 36 * len(GRAPHS)
    assert {pair[5] for pair in every} == {0}
    assert {pair[5] for pair in pairs(2 * len(GRAPHS))} == {0, 1}


@pytest.mark.slow
def test_plans_and_measurements_are_never_faster_than_the_best_known() -> None:
    planned, measured = map(STUDY.run, STUDY.cases(None, short=True))
    for found in (planned, measured):
        assert found.gap(0) >= 0
        assert found.best_plan >= found.best_known
    assert planned.planned <= planned.best_plan <= planned.exact
    assert planned.best_plan <= planned.data_parallel
    (line,) = plans_table([planned, measured]).to_dict("records")
    assert line["links"] == "125 MB/s"
    assert len(measured.steps) == 2
    assert measured.gap(2) >= 0
