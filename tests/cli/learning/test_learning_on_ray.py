"""A run that learns on a Ray cluster goes on without nodes that are lost, or were never there."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from drlpp.io.documents import read_document
from drlpp.placement.placement_file import PlacementFile
from tests.cli.learning.test_learning_with_lost_hosts import after, changes, entries, learn
from tests.support.programs.ray_clusters import PATIENT, hosts_file, patience, ray_cluster


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_node_that_ends_and_is_started_again(tmp_path: Path) -> None:
    """Of three hosts that are asked for one is never there."""
    out = tmp_path / "run"
    limits = replace(PATIENT, gathering_seconds=3)
    with ray_cluster((2, 2)) as cluster, patience(limits):
        names = dict.fromkeys(cluster.addresses, 2) | {"late": 3}
        hosts = ["--hosts", hosts_file(tmp_path / "hosts.yaml", names)]

        def lose() -> None:
            os.kill(cluster.process(1, "/raylet"), signal.SIGKILL)

        with after(3, lose):
            done = learn(out, 6, "--cluster", cluster.address, *hosts)
        assert done.code == 0, done.err
        told = "host late is missing or in use: the profile is of the 4 workers that are there"
        assert told in " ".join(done.out.split())
        assert changes(out) == [((2, 3), (), (0, 1))]
        placement = read_document(out / "placement.json", PlacementFile)
        assert placement.cluster.accelerators == 2
        known = entries(out)

        # Nobody says how many there are now.
        cluster.restart(1)
        done = learn(out, len(known) + 1, "--cluster", cluster.address, "--resume")
        assert done.code == 0, done.err
        assert changes(out)[1:] == [((), (2, 3), (0, 1, 2, 3))]
        assert entries(out)[: len(known)] == known
