"""The study of search: its problems, its tables, and a run."""

from __future__ import annotations

import pytest

from benchmarks.search import STUDY
from benchmarks.search.tables import plans_table


@pytest.mark.slow
def test_plans_and_measurements_are_never_faster_than_the_best_known() -> None:
    planned, measured = map(STUDY.run, STUDY.cases(None, short=True))
    for found in (planned, measured):
        assert found.gap(0) >= 0
        assert found.best_plan >= found.best_known
    assert planned.planned <= planned.best_plan
    assert planned.best_plan <= planned.data_parallel
    (line,) = plans_table([planned, measured]).to_dict("records")
    assert line["links"] == "125 MB/s"
    assert len(measured.steps) == 2
    assert measured.gap(2) >= 0
