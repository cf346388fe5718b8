"""What a run says of its search is printed, kept, and in its record and its report."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from drlpp.cli.learning.learning_job import keep_split
from drlpp.cli.learning.live_run import run_record
from drlpp.envs.measuring.search_file import Confidence
from drlpp.report.page import write_report
from drlpp.runtime import TimeSpent
from drlpp.schedule.method import Method
from tests.support.reports import Page, learned_run

SURE = Confidence(configuration="1-1", method=Method(), share=0.88, expected_gain=0.004)


def session(deploying: float, running: float) -> Any:
    return SimpleNamespace(spent=TimeSpent(deploying_seconds=deploying, running_seconds=running))


def test_the_record_and_the_report_of_a_run_say_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = learned_run(tmp_path)
    assert "search" not in run_record(run)
    keep_split(run, session(1.0, 4.0), TimeSpent(), 5.0, 2)
    assert run_record(run)["search"]["confidence"] is None
    keep_split(run, session(3.0, 12.0), TimeSpent(), 20.0, 8, SURE)
    # Printed is what this part took, kept what both did.
    assert "learning took 20 s for 8 placements" in capsys.readouterr().out
    search = run_record(run)["search"]
    assert (search["placements"], search["seconds"], search["cluster_seconds"]) == (10, 25, 16)
    assert search["confidence"]["configuration"] == "1-1"
    text = Page(write_report(run)).text
    assert "1-1 with 1f1b, pipeoptim: 88% probability of being within 1% of the fastest" in text
    assert "learning took 25 s for 10 placements, 16 s of them on the cluster" in text
