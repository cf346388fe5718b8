"""Training and measuring on the hosts of a Ray cluster: two nodes, on addresses of this machine."""

import os
import re
import signal
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.placement.measurement import FailedMeasurement, Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, TimeLimits, run_reference
from drlpp.runtime.hosts.on_ray.host import RayHost
from drlpp.runtime.ipc.file_chunks import CHUNK_BYTES
from drlpp.runtime.ipc.tensor_file import write_checkpoint
from drlpp.schedule.method import Method
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.in_turns import fast_are
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


def test_other_versions_are_refused_before_anything_runs(
    cluster: RayCluster, captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the module's session has all accelerators."""
    real = metadata.version
    with monkeypatch.context() as patch:
        patch.setattr(metadata, "version", lambda name: "9.9" if name == "torch" else real(name))
        with pytest.raises(InvalidInput, match=r"host .* has drlpp .*, and this one .*torch 9.9"):
            ClusterSession(captured, 1, cluster=cluster.address, time_limits=PATIENT)


@pytest.mark.parametrize("shape", ["straight", "replicated", "branching"])
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


@pytest.mark.parametrize("shape", ["straight", "replicated"])
def test_workers_of_several_hosts_get_the_same_minibatches(
    captured: CapturedModel,
    session: ClusterSession,
    shape: str,
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
        deployment = session.deploy(placements(captured)[shape], Method(policy="stash"), ADAM)
        session.run(deployment, 60, options)
        found.append(session.collect(deployment)[0])
    assert same(*found)
    # It may remove the last ones a moment later.
    session.worker_group.hosts.hosts[1].check()
    _other(session)._line.ask("remove", "nothing")
    assert not [name for name in _files_of(session) if "stream" in name]


def _other(session: ClusterSession) -> RayHost:
    host = session.worker_group.hosts.hosts[1]
    assert isinstance(host, RayHost)
    return host


def _files_of(session: ClusterSession) -> list[str]:
    """Names of the files in the other host's folder."""
    (folder,) = [
        path
        for path in Path(session.folder).parent.glob("drlpp-session-*")
        if path != session.folder and (path / "model.safetensors").exists()
    ]
    return [path.name for path in folder.iterdir()]


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


def test_an_error_of_the_model_is_no_lost_host(session: ClusterSession) -> None:
    """The hosts are asked, and answer."""
    placement = placements(session.captured)["straight"]
    inputs, targets = samples()
    bad = torch.full_like(targets, 10_000)
    session.use_samples(inputs, bad)
    try:
        deployment = session.deploy(placement, PIPEOPTIM, SGD)
        with pytest.raises(Exception, match=r"(?i)target|index") as told:
            session.run(deployment, 4, RunOptions(order=order(4)))
        assert type(told.value).__name__ == "ModelError"
    finally:
        session.use_samples(session.captured.task.inputs, session.captured.task.targets)
    assert not isinstance(session.measure(placement, 4), FailedMeasurement)


@pytest.mark.parametrize("orders", fast_are([2_000], [2_000, 10_000]))
def test_orders_and_chunks_keep_their_order(
    session: ClusterSession, tmp_path: Path, orders: int
) -> None:
    """Thousands of small orders, and between them chunks that go by Ray's object store."""
    host = _other(session)
    content = os.urandom(2 * CHUNK_BYTES + 12_345)
    (tmp_path / "large").write_bytes(content)
    for number in range(orders):
        host._line.order("remove", f"nothing-{number}")
        if number % 1000 == 500:
            host.publish(tmp_path / "large")
            assert host.fetch("large").read_bytes() == content
    host._line.ask("remove", "large")
    assert host._line.orders >= orders
    (session.folder / "large").unlink()


def test_what_a_session_uses_no_other_gets(
    session: ClusterSession, cluster: RayCluster, captured: CapturedModel
) -> None:
    assert session.accelerators == 4
    impatient = TimeLimits(host_silence_seconds=20, gathering_seconds=1)
    with pytest.raises(InvalidInput, match="another program or session has accelerators"):
        ClusterSession(captured, 1, cluster=cluster.address, time_limits=impatient)
    with pytest.raises(InvalidInput, match="5 workers were asked for, but the Ray cluster has 4"):
        ClusterSession(captured, 5, cluster=cluster.address, time_limits=impatient)
    with pytest.raises(InvalidInput, match=r"belongs to the Ray cluster .* already"):
        ClusterSession(captured, 1, cluster="127.0.0.1:1")
