"""The commands that take ``--cluster``, on the hosts of a Ray cluster, some of which are lost."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from drlpp.io.documents import read_document
from drlpp.specs.cluster import Cluster
from tests.support.models.counting import counts
from tests.support.programs import shell
from tests.support.programs.ray_clusters import PATIENT, RayCluster, patience, ray_cluster

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

COUNTING = "tests.support.models.counting"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes with two accelerators each."""
    limits = replace(PATIENT, gathering_seconds=3)
    with ray_cluster((2, 2)) as cluster, patience(limits), pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", cluster.address)
        yield cluster


def test_from_a_profile_to_a_training_that_is_resumed_on_other_hosts(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """On four workers, and on two when a host is gone."""
    costs, hosts, path = (tmp_path / name for name in ("costs.json", "cluster.yaml", "placed.json"))
    model, on_ray = f"{COUNTING}:counting", ["--cluster", "auto"]
    shell.done("profile", model, "-o", costs, *on_ray)
    assert read_document(hosts, Cluster).host_name_of == tuple(
        address for address in cluster.addresses for _ in range(2)
    )
    planned = ["--profile", costs, "--cluster", hosts, "--planner", "gpipe", "--policy", "stash"]
    at_noam = ["--method-option", "in_flight_per_link=0"]
    shell.done("plan", model, *planned, *at_noam, "-o", path)
    rate_one = ["--optimizer", "sgd", "--lr", 1, "--optimizer-option", "momentum=0"]
    job = ["train", path, "--data", f"{COUNTING}:every_sample", *rate_one]
    job += ["--model", model, *on_ray]
    shell.done(*job, "--epochs", 1)
    cluster.nodes[1].stop()
    told = shell.done(*job, "--epochs", 2, "--resume", "--workers", 2).words
    assert "is for 4 workers; for 2 it is" in told
    job += ["--epochs", 3, "--resume", "--workers", 4]
    refused = shell.drlpp(*job)
    assert refused.code == 2
    assert "4 workers are needed, and the Ray cluster has free nodes for 2" in refused.err
    assert "Start Ray on more, or ask for fewer: a cluster.yaml as --cluster" in refused.err
    state = torch.load(tmp_path / "training" / "model.pt")
    assert counts(state) == {(f"layers.{layer}.weight", 2.0) for layer in range(4)}
