"""Training and measuring on workers that other hosts keep, as under torchrun."""

import os
import re
import signal
import socket
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import HostLost, WorkerLost
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, TimeLimits, run_reference
from drlpp.runtime.hosts import host_agent as host_agent_module
from drlpp.runtime.ipc.tensor_file import write_checkpoint
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import largest_difference, order, placements, samples
from tests.support.programs.launched import launched

SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
PIPEOPTIM = Method(policy="pipeoptim")


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(captured: CapturedModel) -> Iterator[ClusterSession]:
    """Two workers on the controller's host, two on another that shares no folder with it."""
    with launched([0, 0, 1, 1]), ClusterSession(captured) as session:
        yield session


def _train(session: ClusterSession, placement: Placement) -> dict[str, Tensor]:
    session.use_samples(*samples())
    deployment = session.deploy(placement, PIPEOPTIM, SGD)
    session.run(deployment, 12, RunOptions(order=order(12)))
    return session.collect(deployment)[0]


@pytest.mark.parametrize("shape", ["straight", "replicated", "branching"])
def test_workers_of_several_hosts_train_to_the_references_weights(
    captured: CapturedModel, session: ClusterSession, shape: str
) -> None:
    placement = placements(captured)[shape]
    assert session.host_of[0] == session.host_of[1] != session.host_of[2] == session.host_of[3]
    weights = _train(session, placement)
    inputs, targets = samples()
    expected = run_reference(
        captured,
        placement,
        Minibatches(inputs, targets, order(12)),
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


def test_worker_of_another_host_is_replaced(
    captured: CapturedModel, session: ClusterSession
) -> None:
    placement = placements(captured)["straight"]
    session.use_samples(captured.task.inputs, captured.task.targets)
    assert isinstance(session.measure(placement, 4), Measurement)
    before = session.process_ids
    # These host agents are threads, so their workers are processes of this machine.
    os.kill(before[3], signal.SIGKILL)
    # Whether the host agent has noticed before the session starts to measure, or not.
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


def test_host_that_is_gone_ends_the_session_with_a_reason(captured: CapturedModel) -> None:
    placement = placements(captured)["straight"]
    with launched([0, 1, 1, 2]) as controller, ClusterSession(captured) as session:
        session.measure(placement, 4)
        _, connection = controller.host_agents()[2]
        with socket.socket(fileno=os.dup(connection.fileno())) as peer:
            peer.shutdown(socket.SHUT_RDWR)
        for _ in range(2):
            with pytest.raises(HostLost, match=r"rank 3\) cannot be reached"):
                session.measure(placement, 4)
        workers = session.process_ids
    for worker in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(worker, 0)


def test_silent_host_is_lost_in_time(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = TimeLimits(end_seconds=0.9)
    carry_out = host_agent_module.HostAgent._carry_out
    silent = False
    monkeypatch.setattr(
        host_agent_module.HostAgent,
        "_carry_out",
        lambda *args: None if silent else carry_out(*args),
    )
    with launched([0, 1]), ClusterSession(captured, time_limits=limits) as session:
        session.measure(Placement.from_assignment([0] * len(captured.graph), (0, 0)), 4)
        # Only now: what is not silent may be slow.
        brief = replace(limits, host_silence_seconds=2)
        for host in session.worker_group.hosts.hosts:
            monkeypatch.setattr(host, "_limits", brief, raising=False)
        silent = True
        os.kill(session.process_ids[1], signal.SIGKILL)
        placement = Placement.from_assignment([0] * len(captured.graph), (0, 0))
        # That the worker has died may be noticed before that its host agent is silent.
        with suppress(WorkerLost, HostLost):
            session.deploy(placement)
        with pytest.raises(HostLost, match="no answer within 2 s"):
            session.deploy(placement)
        silent = False
