"""Measurements with Ray and without: their ratio, and whose processor time is Ray's."""

import subprocess
import sys

import psutil
import pytest
from typer.testing import CliRunner

from benchmarks.repeatability import ray_load
from benchmarks.repeatability.__main__ import app, compared
from tests.support.programs.ray_clusters import ray_cluster


@pytest.mark.parametrize(
    ("with_ray", "said"),
    [
        ([2.0, 4.1, 3.0], "1.008 ± 0.008, noise"),
        ([2.2, 4.5, 3.3], "1.108 ± 0.007, slower"),
        ([1.8, 3.5, 2.7], "0.892 ± 0.009, faster"),
    ],
)
def test_what_is_said_of_a_ratio_follows_from_pairs(with_ray: list[float], said: str) -> None:
    """However far the machine drifts from pair to pair."""
    assert compared({"without Ray": [2.0, 4.0, 3.0], "with Ray": with_ray}) == said


def test_processor_time_of_ray_is_that_of_its_processes() -> None:
    wait = "import sys; sys.stdin.read()"
    found = {}
    for title in ("ray::HostActor.open", "raylet", "drlpp-w0"):
        found[title] = subprocess.Popen(
            [title, "-c", wait], executable=sys.executable, stdin=subprocess.PIPE
        )
    try:
        seconds = ray_load._processor_seconds_of_ray()
        counted = {title for title, p in found.items() if psutil.Process(p.pid) in seconds}
        assert counted == {"ray::HostActor.open"}
    finally:
        for process in found.values():
            process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_session_with_ray_is_measured_beside_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("benchmarks.repeatability.__main__._IDLE_SECONDS", 0.1)
    options = "--model tests.support.models.small:forked --workers 2 --minibatches 4 --times 2"
    with ray_cluster((2,)) as cluster:
        done = CliRunner().invoke(app, [*options.split(), "--cluster", cluster.address])
    assert done.exit_code == 0, done.output
    for what in ("without Ray", "with Ray"):
        assert f"while a session {what} measures: " in done.output
        assert sum(f"  {what}  " in line for line in done.output.splitlines()) == 4
    assert "while nothing is measured: " in done.output
