"""A run that learns on a Ray cluster goes on without a node that is lost."""

import os
import signal
from pathlib import Path

import pytest

from drlpp.io.documents import read_document
from drlpp.placement.placement_file import PlacementFile
from drlpp.runtime.ipc.time_limits import TimeLimits
from drlpp.runtime.session import worker_session
from tests.cli.learning.test_learning_with_lost_hosts import after, changes, entries, learn
from tests.support.programs.ray_clusters import PATIENT, ray_cluster


@pytest.mark.system
def test_a_node_that_ends_and_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "run"

    def patient(*_given: object) -> TimeLimits:
        return PATIENT

    monkeypatch.setattr(worker_session, "time_limits_of", patient)
    with ray_cluster((2, 2)) as cluster:

        def lose() -> None:
            os.kill(cluster.process(1, "/raylet"), signal.SIGKILL)

        with after(3, lose):
            done = learn(out, 6, "--cluster", cluster.address)
        assert done.code == 0, done.err
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
