"""The commands that take ``--cluster``, on the hosts of a Ray cluster, some of which are lost."""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drlpp.cli import main as command_line
from drlpp.io.documents import read_document
from drlpp.specs.cluster import Cluster
from tests.cli.learning.test_racing_with_lost_hosts import after, changes, race, raced, used
from tests.support.models.counting import counts
from tests.support.programs import shell
from tests.support.programs.ray_clusters import (
    PATIENT,
    RayCluster,
    hosts_file,
    look_until_it_has_returned,
    patience,
    ray_cluster,
)

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

COUNTING = "tests.support.models.counting"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes with two accelerators each, for all tests: each leaves two such behind."""
    limits = replace(PATIENT, gathering_seconds=3)
    with ray_cluster((2, 2)) as cluster, patience(limits), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster


def told_by(*command: object) -> str:
    """What a command prints that ends well."""
    done = shell.finish(command_line.main, "drlpp", *command)
    assert done.code == 0, done.err
    return " ".join(done.out.split())


def test_from_a_profile_to_a_training_that_is_resumed_on_other_hosts(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """On four workers, on two when a host is gone, and on four with another in its place."""
    costs, hosts, path = (tmp_path / name for name in ("costs.json", "cluster.yaml", "placed.json"))
    model, on_ray = f"{COUNTING}:counting", ["--cluster", "auto"]
    told_by("profile", model, "-o", costs, "--write-cluster", hosts, "--repeats", 1, *on_ray)
    assert read_document(hosts, Cluster).host_name_of == tuple(
        address for address in cluster.addresses for _ in range(2)
    )
    planned = ["--profile", costs, "--cluster", hosts, "--method", "gpipe", "--policy", "stash"]
    told_by("plan", model, *planned, "-o", path)
    named = ["--model", model, *on_ray]
    told = told_by("timeline", path, "--from", "run", "--minibatches", 2, *named)
    assert "1-1-1-1, 1f1b, stash, as it ran" in told

    rate_one = ["--optimizer", "sgd", "--lr", 1, "--optimizer-option", "momentum=0"]
    job = ["train", path, "--data", f"{COUNTING}:every_sample", *rate_one, *named]
    told_by(*job, "--epochs", 1)
    cluster.nodes[1].stop()
    told = told_by(*job, "--epochs", 2, "--resume", "--workers", 2)
    assert "is for 4 workers; for 2 it is" in told
    refused = shell.finish(command_line.main, "drlpp", *job, "--epochs", 3, "--resume")
    assert refused.code == 2
    assert "2 hosts were asked for, and the Ray cluster has no node left" in refused.err
    assert "Start Ray on another, or ask for fewer: --hosts names them" in refused.err
    cluster.join(2)
    told_by(*job, "--epochs", 3, "--resume")
    state = torch.load(tmp_path / "training" / "model.pt")
    assert counts(state) == {(f"layers.{layer}.weight", 3.0) for layer in range(4)}


def test_a_race_begins_without_a_host_takes_it_in_and_loses_it(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    last = len(cluster.nodes) - 1
    cluster.nodes[last].stop()
    joined: list[int] = []
    look_until_it_has_returned(monkeypatch, lambda: bool(joined))

    def join() -> None:
        cluster.restart(last)
        joined.append(last)

    def lose() -> None:
        joined.clear()
        os.kill(cluster.process(last, "/raylet"), signal.SIGKILL)

    acts = iter([join, lose])
    names = {cluster.addresses[0]: 2, "late": 2}
    wanted = ["--hosts", hosts_file(tmp_path / "hosts.yaml", names)]
    out = tmp_path / "race"
    with after(2, lambda: next(acts)(), then=3):
        done = race(out, 4, "--cluster", "auto", *wanted)
    assert done.code == 0, done.err
    told = " ".join(done.out.split())
    assert "host late is missing or in use: the profile is of the 2 workers that are there" in told
    assert changes(out) == [((), (2, 3)), ((2, 3), ())]
    found = raced(out)
    assert found.absent == (2, 3)
    out_of_it = {n for n, one in enumerate(found.candidates) if used(one) & {2, 3}}
    assert out_of_it == set(found.lost)
    assert out_of_it
    # For the next test.
    cluster.restart(last)
