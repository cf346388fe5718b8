"""``drlpp show PLACEMENT --timeline``, as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drlpp.capturing.capture import capture
from drlpp.costs.profile import Profile, RunFactors
from drlpp.io.documents import read_document, write_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.programs.shell import Shell
from tests.support.strategies.graphs import profile_of
from tests.support.traces import checked

MODEL = ModelReference.named("tests.support.models.small:perceptron", layers=2)
LINK = Link(bandwidth_bytes_per_second=1e6)


TIMELINE = ("show", "--model", MODEL.name, "--timeline")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A placement on two hosts, a profile of its model, and one of another."""
    folder = tmp_path_factory.mktemp("timeline")
    hosts = tuple(Host(name=name, accelerators=1) for name in ("near", "far"))
    graph = capture(MODEL).graph
    placement = PlacementFile.create(
        MODEL,
        graph,
        Placement.from_assignment([0, 0, 0, 1, 1], (0, 1)),
        Cluster(hosts=hosts, within_host=LINK, between_hosts=LINK),
        method=Method(),
        optimizer=OptimizerSpec(),
        found_by="test",
    )
    other = capture(ModelReference.named("tests.support.models.small:perceptron", layers=1)).graph
    return {
        "PLACEMENT": write_document(folder / "placement.json", placement),
        "PROFILE": write_document(folder / "profile.json", profile_of(graph, [3e-3] * 5)),
        "OTHER": write_document(folder / "other.json", profile_of(other, [3e-3] * 3)),
    }


def rows(printed: str) -> list[list[float]]:
    """The numbers of a table's rows: worker, stage, shares."""
    lines = [line.split() for line in printed.splitlines() if line.strip().endswith("%")]
    return [[float(cell.rstrip("%")) for cell in line] for line in lines]


def test_from_the_schedule(shell: Shell, files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    command = (*TIMELINE, "schedule", files["PLACEMENT"], "--minibatches", 4, "-o", path)
    code, out, err = shell(*command)
    assert code == 0, err
    assert "3 per minibatch" in " ".join(out.split())
    # Worker, stage, forward, backward, utilisation, bubble.
    assert rows(out) == [[0, 0, 33.3, 66.7, 100, 0], [1, 1, 33.3, 66.7, 100, 0]]
    trace = path.read_text()
    seconds = checked(json.loads(trace))
    assert seconds[0]["forward"] == 4
    assert seconds[1]["backward"] == 8
    hosts = [e["args"]["name"] for e in json.loads(trace)["traceEvents"] if e["name"][:4] == "proc"]
    assert hosts == ["near", "far"]
    shell(*command)
    assert path.read_text() == trace


def test_from_the_simulator(shell: Shell, files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    command = (
        *(*TIMELINE, "simulator", files["PLACEMENT"], "--profile", files["PROFILE"]),
        *("-o", path),
    )
    code, out, err = shell(*command)
    assert code == 0, err
    assert "9.00 ms per minibatch" in out
    known = tmp_path / "known.json"
    costs = read_document(files["PROFILE"], Profile)
    factors = RunFactors(spread=0.06)
    write_document(known, costs.model_copy(update={"in_pipeline": factors}))
    simulated = (*TIMELINE, "simulator", files["PLACEMENT"], "--profile", known)
    assert "9.00 ms ± 6% per minibatch" in shell(*simulated)[1]
    assert shell.json(*simulated)["error_bar"] == 0.06
    trace = path.read_text()
    seconds = checked(json.loads(trace))
    for worker, _, forward, backward, waiting, utilisation, bubble in rows(out):
        mine = seconds[int(worker)]
        total = sum(mine.values())
        assert forward == pytest.approx(100 * mine["forward"] / total, abs=0.06)
        assert backward == pytest.approx(100 * mine["backward"] / total, abs=0.06)
        assert waiting == pytest.approx(100 * mine["waiting"] / total, abs=0.06)
        assert utilisation == pytest.approx(forward + backward, abs=0.11)
        assert bubble == pytest.approx(waiting, abs=0.06)
    shell(*command)
    assert path.read_text() == trace
    # A slow accelerator.
    code, changed, err = shell(*command, "--speeds", "1,0.5")
    assert code == 0, err
    assert rows(changed) != rows(out)


@pytest.mark.timeout(100)
def test_from_a_run(shell: Shell, files: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    code, out, err = shell(*TIMELINE, "run", files["PLACEMENT"], "-o", path)
    assert code == 0, err
    assert "prediction" in out
    seconds = checked(json.loads(path.read_text()))
    for worker in (0, 1):
        for kind in ("forward", "backward", "update", "sending", "waiting"):
            assert seconds[worker][kind] > 0
    assert seconds[0]["prediction"] > 0
    assert seconds[1]["prediction"] == 0, "the last stage has nothing to predict"
    assert [row[:2] for row in rows(out)] == [[0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["schedule", "nothing.json"], "nothing.json: no such file"),
        (["schedule", "PLACEMENT", "-o", "x.png"], "name it .json"),
        (["schedule", "PLACEMENT", "--profile", "PROFILE"], "for --timeline simulator"),
        (["schedule", "PLACEMENT", "--speeds", "1,1"], "--speeds is for --timeline simulator"),
        (["simulator", "PLACEMENT", "--cluster", "auto"], "needs what operators cost"),
        (["run", "PLACEMENT", "--speeds", "1,2"], "speed"),
        (["simulator", "PLACEMENT", "--profile", "OTHER"], "but PLACEMENT is a placement of"),
    ],
)
def test_bad_input_is_one_line(
    shell: Shell, files: dict[str, Path], arguments: list[object], message: str
) -> None:
    code, _, err = shell(*TIMELINE, *(files.get(str(value), value) for value in arguments))
    assert code == 2
    assert err.startswith("drlpp: error: ")
    assert message.replace("PLACEMENT", str(files["PLACEMENT"])) in err
    assert err.count("\n") == 1
