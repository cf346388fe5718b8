"""A placement that is planned for another project's profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.papers.pipedream_profile import read_pipedream_profile
from drlpp import PlanningProblem, Workload, read_placement
from drlpp.io.documents import write_document
from drlpp.planners import exact
from drlpp.specs.cluster import Link, local_cluster
from tests.support.planning.public_data import PROFILES
from tests.support.programs.shell import Shell

LINK = Link(bandwidth_bytes_per_second=1e9)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def test_a_plan_of_a_published_profile_is_written(shell: Shell, tmp_path: Path) -> None:
    costs, written = tmp_path / "costs.json", tmp_path / "vgg16.json"
    profile = read_pipedream_profile(PROFILES / "vgg16.txt")
    # No name that a model can be built by.
    graph = profile.graph.model_copy(update={"model": "published"})
    profile = profile.model_copy(update={"graph": graph})
    write_document(costs, profile)
    arguments = ("plan", "--profile", costs, "--workers", 4, "--bandwidth", 1e9)
    code, _, error = shell(*arguments, "--planner", "exact", "-o", written)
    assert code == 0, error
    document = read_placement(written)
    assert str(document.model) == "<published>"
    work, cluster = Workload.of(profile), local_cluster(4, LINK)
    found = exact(PlanningProblem(work, cluster, replicate=False)).placement
    assert document.resolve(profile.graph) == found
    timeline = ("show", written, "--timeline", "simulator", "--profile", costs)
    assert shell(*timeline)[0] == 0
    code, _, error = shell("train", written)
    assert (code, "has a name that builds nothing" in error) == (2, True)
