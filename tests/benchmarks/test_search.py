"""The study of search: its problems, its tables, and a run."""

from __future__ import annotations

import pytest

from benchmarks.search import STUDY
from benchmarks.search.graphs import NAMES, graph_of
from benchmarks.search.tables import plans_table


@pytest.mark.parametrize("name", NAMES)
def test_graphs_branch_and_have_the_size_that_is_asked_for(name: str) -> None:
    graph = graph_of(name).graph
    assert 40 <= len(graph) <= 150
    assert len(graph.edges) > len(graph) - 1
    assert all(edge.source < edge.target for edge in graph.edges)
    assert graph_of(name) == graph_of(name)


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
