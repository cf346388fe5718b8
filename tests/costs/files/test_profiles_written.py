"""Profiles and placements in other projects' formats: written, and read again."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import pytest

from drlpp import PlanningProblem, Workload, read_placement
from drlpp.costs.analytic_model import predict
from drlpp.costs.files.pipedream_profile import read_pipedream_profile
from drlpp.costs.files.pipedream_writer import write_pipedream_profile
from drlpp.costs.files.profile_files import read_profile
from drlpp.costs.synthetic_profiles import generate
from drlpp.io.documents import write_document
from drlpp.placement.placement import Placement, Stage
from drlpp.planners import plan
from drlpp.planners.milp.partitioning_instance import PartitioningInstance
from drlpp.planners.milp.partitioning_writer import write_partitioning_instance
from drlpp.specs.cluster import Link, local_cluster
from tests.support.planning.public_data import INSTANCES, PROFILES
from tests.support.programs.shell import Shell

LINK = Link(bandwidth_bytes_per_second=1e9)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.mark.parametrize("name", ["vgg16", "gnmt", "resnet50", "alexnet"])
def test_pipedreams_profiles_are_written_as_they_were_read(name: str, tmp_path: Path) -> None:
    profile = read_pipedream_profile(PROFILES / f"{name}.txt")
    path = tmp_path / f"{name}.txt"
    write_pipedream_profile(path, profile)
    again = read_pipedream_profile(path)
    assert again.graph == profile.graph
    assert again.seconds == pytest.approx(profile.seconds)


def test_a_profile_of_ours_keeps_what_pipedream_reads(tmp_path: Path) -> None:
    profile = generate("blocks", 12, 3)
    write_pipedream_profile(tmp_path / "graph.txt", profile)
    again = read_pipedream_profile(tmp_path / "graph.txt")
    assert again.graph.predecessors == profile.graph.predecessors
    assert again.seconds == pytest.approx(profile.seconds)
    for one, other in zip(again.graph.operators, profile.graph.operators, strict=True):
        assert one.output_bytes == other.output_bytes
        assert one.parameter_bytes == other.parameter_bytes


@pytest.mark.parametrize("seed", range(5))
def test_an_instance_costs_what_the_profile_does(seed: int, tmp_path: Path) -> None:
    """By its own rule, in which all that an accelerator does adds up, wherever a chain is cut."""
    profile = generate("chain", 9, seed).model_copy(update={"update_seconds_per_byte": 1e-10})
    path = tmp_path / "chain.json"
    write_partitioning_instance(path, profile, 3, LINK, 2.0**40)
    instance = PartitioningInstance.read(path)
    problem = instance.problem()
    assert problem.cluster.accelerators == 3
    assert len(instance.workload) == 9
    cluster = local_cluster(3, LINK)
    for cuts in [(0, 9), (0, 4, 9), (0, 2, 5, 9), (0, 1, 8, 9)]:
        placement = Placement(
            stages=tuple(
                Stage(operators=tuple(range(a, b)), accelerators=(k,))
                for k, (a, b) in enumerate(pairwise(cuts))
            )
        )
        ours = predict(Workload.of(profile), cluster, placement, "serial").seconds_per_minibatch
        # The last stage of ours also makes the loss of what the last operator gives it.
        assert problem.predict(placement).seconds_per_minibatch == pytest.approx(ours)


def test_gradients_of_branches_have_their_own_sizes(tmp_path: Path) -> None:
    """A join reads a large and a small tensor, and sends a gradient of each size back."""
    profile = generate("towers", 8, 1)
    path = tmp_path / "towers.json"
    write_partitioning_instance(path, profile, 2, LINK, 2.0**40)
    workload = PartitioningInstance.read(path).workload
    graph = profile.graph
    sent = {
        (pair.source, pair.target): LINK.seconds(graph.operators[pair.source].output_bytes)
        for pair in graph.edges
    }
    of_maker = {t.members: t.forward_bytes for t in workload.transfers}
    for (source, target), seconds in sent.items():
        assert of_maker[target, source] == pytest.approx(seconds)


def test_a_plan_of_a_published_profile_is_written(shell: Shell, tmp_path: Path) -> None:
    costs, written = PROFILES / "vgg16.txt", tmp_path / "vgg16.json"
    arguments = ("plan", "--profile", costs, "--accelerators", 4, "--bandwidth", 1e9)
    stages = tmp_path / "stages.txt"
    code, _, error = shell(*arguments, "--method", "exact", "--no-replication", "-o", written)
    assert code == 0, error
    document = read_placement(written)
    profile = read_profile(costs)
    assert str(document.model) == "<vgg16>"
    work, cluster = Workload.of(profile), local_cluster(4, LINK)
    found = plan("exact", PlanningProblem(work, cluster, replicate=False)).placement
    assert document.resolve(profile.graph) == found
    code, _, error = shell(*arguments, "--method", "exact", "--no-replication", "-o", stages)
    assert code == 0, error
    numbers = re.findall(r"^(node\d+) .* -- stage_id=(\d)$", stages.read_text(), re.MULTILINE)
    stage_of = found.stage_of_operator(len(profile.graph))
    assert {node: int(k) for node, k in numbers} == {
        op.module: stage_of[op.id] for op in profile.graph.operators
    }
    assert read_pipedream_profile(stages).graph.fingerprint == profile.graph.fingerprint
    timeline = ("timeline", written, "--from", "simulator", "--profile", costs)
    assert shell(*timeline)[0] == 0
    code, _, error = shell("train", written)
    assert (code, "has a name that builds nothing" in error) == (2, True)


def test_a_plan_of_an_instance_is_written(shell: Shell, tmp_path: Path) -> None:
    path, written = INSTANCES / "resnet50_training.json", tmp_path / "placement.json"
    code, out, error = shell("plan", "--profile", path, "--json", "-o", written)
    assert code == 0, error
    record = json.loads(out[: out.rindex("}") + 1])
    document = read_placement(written)
    assert [len(stage.operators) for stage in document.stages] == [
        len(stage["operators"]) for stage in record["stages"]
    ]
    code, _, error = shell("plan", "--profile", path, "-o", tmp_path / "x.txt")
    assert (code, "an instance has no graph.txt" in error) == (2, True)


def test_converting(shell: Shell, tmp_path: Path) -> None:
    profile = generate("residual", 7, 2)
    source = write_document(tmp_path / "profile.json", profile)
    for to, name in [("table", "costs.csv"), ("pipedream", "graph.txt"), ("profile", "p.yaml")]:
        code, _, error = shell("convert", source, "--to", to, "-o", tmp_path / name)
        assert code == 0, error
        again = read_profile(tmp_path / name)
        assert again.seconds == pytest.approx(profile.seconds)
        assert again.graph.predecessors == profile.graph.predecessors
    instance = ("convert", source, "--to", "dnn-partitioning", "-o", tmp_path / "i.json")
    links = ("--accelerators", 3, "--bandwidth", 1e9)
    assert shell(*instance, *links, "--memory", 1e10)[0] == 0
    assert PartitioningInstance.read(tmp_path / "i.json").accelerators == 3
    assert "give --memory" in shell(*instance, *links)[2]
    assert (
        "dnn-partitioning alone" in shell("convert", source, "--to", "table", "-o", "x", *links)[2]
    )
