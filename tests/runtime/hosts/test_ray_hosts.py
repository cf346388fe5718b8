"""Training and measuring on the hosts of a Ray cluster: two nodes, on addresses of this machine."""

import os
import re
import signal
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, TimeLimits, run_reference
from drlpp.runtime.ipc.tensor_file import write_checkpoint
from drlpp.schedule.method import Method
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import largest_difference, order, placements, samples
from tests.support.programs.ray_clusters import PATIENT, RayCluster
from tests.support.training.loading import same
from tests.support.training.placement_files import ADAM

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]

SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
PIPEOPTIM = Method(policy="pipeoptim")


@pytest.fixture(scope="module")
def session(cluster: RayCluster, captured: CapturedModel) -> Iterator[ClusterSession]:
    """Two workers on the controller's host, two on another that shares no folder with it."""
    with ClusterSession(captured, cluster=cluster.address, time_limits=PATIENT) as session:
        yield session


def _train(session: ClusterSession, placement: Placement) -> dict[str, Tensor]:
    session.use_samples(*samples())
    deployment = session.deploy(placement, PIPEOPTIM, SGD)
    session.run(deployment, 12, RunOptions(order=order(12)))
    return session.collect(deployment)[0]


@pytest.mark.parametrize("shape", ["replicated", "branching"])
def test_workers_of_several_hosts_train_to_the_references_weights(
    captured: CapturedModel, session: ClusterSession, shape: str
) -> None:
    placement = placements(captured)[shape]
    assert session.accelerators == 4
    assert session.host_of[0] == session.host_of[1] != session.host_of[2] == session.host_of[3]
    weights = _train(session, placement)
    expected = run_reference(
        captured,
        placement,
        Minibatches(*samples(), order(12)),
        12,
        method=PIPEOPTIM,
        optimizer=SGD,
    )
    assert largest_difference(weights, expected.state) < 1e-9


def test_checkpoints_reach_other_hosts(
    captured: CapturedModel, session: ClusterSession, tmp_path: Path
) -> None:
    placement = placements(captured)["straight"]
    whole = _train(session, placement)
    deployment = session.deploy(placement, PIPEOPTIM, SGD)
    path = tmp_path / "checkpoint.safetensors"
    options = RunOptions(order=order(12))
    session.run(
        deployment,
        12,
        options,
        cuts=[5],
        on_cut=lambda cut, results: write_checkpoint(path, session.checkpoint(deployment)),
    )
    deployment = session.deploy(placement, PIPEOPTIM, SGD, path, in_flight=True)
    session.run(deployment, 12, options, start=5)
    resumed = session.collect(deployment)[0]
    assert all(torch.equal(value, resumed[name]) for name, value in whole.items())


def test_workers_of_several_hosts_get_the_same_minibatches(
    captured: CapturedModel,
    session: ClusterSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file for every minibatch, and the other host removes all of them."""
    monkeypatch.setattr(
        "drlpp.runtime.session.minibatch_streamer.chunk_minibatches", lambda bytes_: 1
    )

    def minibatches() -> Iterator[Samples]:
        inputs, targets = samples()
        for indices in order(60):
            yield Samples(tuple(values[indices] for values in inputs), targets[indices])

    session.use_samples(*samples())
    found = []
    for options in (RunOptions(order=order(60)), RunOptions(loaded=minibatches())):
        deployment = session.deploy(
            placements(captured)["replicated"], Method(policy="stash"), ADAM
        )
        session.run(deployment, 60, options)
        found.append(session.collect(deployment)[0])
    assert same(*found)
    # It may remove the last ones a moment later.
    other: Any = session.worker_group.hosts.hosts[1]
    other._ask("remove", "nothing")
    files = [path.name for path in Path(other.folder).iterdir()]
    assert "model.safetensors" in files
    assert not [name for name in files if "stream" in name]


def test_worker_of_another_host_is_replaced(
    captured: CapturedModel, session: ClusterSession
) -> None:
    placement = placements(captured)["straight"]
    session.use_samples(captured.task.inputs, captured.task.targets)
    assert isinstance(session.measure(placement, 4), Measurement)
    before = session.process_ids
    os.kill(before[3], signal.SIGKILL)
    # Whether the host has noticed before the session starts to measure, or not.
    with warnings.catch_warnings(record=True) as told:
        assert isinstance(session.measure(placement, 4), Measurement)
    assert all(re.match(r"worker 3 (\(.*\) )?was killed", str(t.message)) for t in told)
    assert not set(before) & set(session.process_ids)


def test_profile_tells_hosts_and_links_apart(
    captured: CapturedModel, session: ClusterSession
) -> None:
    session.use_samples(captured.task.inputs, captured.task.targets)
    _, cluster = session.profile(repeats=2)
    assert cluster.accelerators == 4
    assert cluster.host_of == (0, 0, 1, 1)
    assert cluster.between_hosts is not None


def test_what_a_session_uses_no_other_gets(
    session: ClusterSession, cluster: RayCluster, captured: CapturedModel
) -> None:
    assert session.accelerators == 4
    impatient = TimeLimits(host_silence_seconds=20, gathering_seconds=1)
    with pytest.raises(InvalidInput, match=r"1 workers are needed.* used by another program or s"):
        ClusterSession(captured, 1, cluster=cluster.address, time_limits=impatient)
    with pytest.raises(InvalidInput, match="5 workers were asked for, but the Ray cluster has 4"):
        ClusterSession(captured, 5, cluster=cluster.address, time_limits=impatient)
    with pytest.raises(InvalidInput, match=r"belongs to the Ray cluster .* already"):
        ClusterSession(captured, 1, cluster="127.0.0.1:1")
