"""Sessions, programs and trainings on a Ray cluster: two nodes, on addresses of this machine.

All tests share the cluster, since it takes long to start; the last ones leave other nodes behind.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from torch import Tensor

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import HostLost, InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import Measurement
from drlpp.placement.placement import Placement
from drlpp.planners.replanning import Elastic
from drlpp.runtime import (
    ClusterSession,
    EpochReport,
    Minibatches,
    PipelineTrainer,
    RunOptions,
    TimeLimits,
    TrainerCallbacks,
    run_reference,
)
from drlpp.runtime.hosts.on_ray.host import RayHost
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.counting import counting, counts, every_sample
from tests.support.models.forked import largest_difference, order, placements, samples
from tests.support.programs.documented_commands import ROOT
from tests.support.programs.ray_clusters import (
    PATIENT,
    RayCluster,
    look_until_it_has_returned,
    ray_cluster,
)
from tests.support.training.loading import same
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import ADAM, file_of
from tests.support.training.strikes import changes_in

pytestmark = [pytest.mark.system, pytest.mark.timeout(600)]

SGD = OptimizerSpec(name="sgd", options={"lr": 0.05, "momentum": 0.9})
PIPEOPTIM = Method(policy="pipeoptim")
SHARED: list[ClusterSession] = []


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster((2, 2)) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:forked"))


@pytest.fixture(scope="module")
def session(cluster: RayCluster, captured: CapturedModel) -> Iterator[ClusterSession]:
    """Two workers on the controller's host, two on another that shares no folder with it."""
    with ClusterSession(captured, cluster=cluster.address, time_limits=PATIENT) as session:
        SHARED.append(session)
        yield session


@pytest.fixture
def free() -> None:
    """All accelerators are, from here on."""
    for session in SHARED:
        session.close()


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
        captured, placement, Minibatches(*samples(), order(12)), 12, method=PIPEOPTIM, optimizer=SGD
    )
    assert largest_difference(weights, expected.state) < 1e-9


def test_workers_of_several_hosts_get_the_same_minibatches(
    captured: CapturedModel, session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file for every minibatch, and the other host removes all of them."""
    monkeypatch.setattr(
        "drlpp.runtime.session.minibatch_streamer.chunk_minibatches", lambda bytes_: 1
    )

    def minibatches() -> Iterator[Samples]:
        inputs, targets = samples()
        for indices in order(30):
            yield Samples(tuple(values[indices] for values in inputs), targets[indices])

    session.use_samples(*samples())
    found = []
    for options in (RunOptions(order=order(30)), RunOptions(loaded=minibatches())):
        deployment = session.deploy(
            placements(captured)["replicated"], Method(policy="stash"), ADAM
        )
        session.run(deployment, 30, options)
        found.append(session.collect(deployment)[0])
    assert same(*found)
    # It may remove the last ones a moment later.
    other: Any = session.hosts[1]
    other._reply(other._order("remove", "nothing"))
    files = [path.name for path in Path(other.folder).iterdir()]
    assert "model.pt" in files
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
    captured: CapturedModel, session: ClusterSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.use_samples(captured.task.inputs, captured.task.targets)
    monkeypatch.setattr(session.of_worker[2], "machine", "another")
    _, cluster = session.profile(repeats=2)
    assert cluster.speeds[0] == 1, "those of the other machine are measured"
    assert cluster.accelerators == 4
    assert cluster.host_of == (0, 0, 1, 1)
    assert cluster.between_hosts is not None


def test_what_a_session_uses_no_other_gets(
    session: ClusterSession, cluster: RayCluster, captured: CapturedModel
) -> None:
    assert session.accelerators == 4
    impatient = TimeLimits(host_silence_seconds=20, gathering_seconds=1)
    for workers, address, words in (
        (1, cluster.address, "1 workers are needed.* used by another program or session"),
        (5, cluster.address, "5 workers were asked for, but the Ray cluster has 4"),
        (1, "127.0.0.1:1", "belongs to the Ray cluster .* already"),
    ):
        with pytest.raises(InvalidInput, match=words):
            ClusterSession(captured, workers, cluster=address, time_limits=impatient)


def test_a_frozen_host_is_lost_and_no_worker_is_left(
    captured: CapturedModel, session: ClusterSession, cluster: RayCluster
) -> None:
    """It answers nobody, though its workers still run; they end with it."""
    session.use_samples(*samples())
    placement = placements(captured)["straight"]
    deployment = session.deploy(placement, Method(policy="stash"), ADAM)
    workers = session.process_ids
    frozen: Any = session.hosts[1]
    frozen.limits = replace(PATIENT, host_silence_seconds=8)
    session.run(deployment, 20, RunOptions(order=order(20)))
    # In the middle of a run, wherever that is.
    striking = threading.Timer(0.2, lambda: os.kill(cluster.actor(1), signal.SIGSTOP))
    striking.start()

    def run_on() -> None:
        while True:
            session.run(deployment, 20, RunOptions(order=order(20)))

    told = f"host {cluster.addresses[1]} cannot be reached: no sign of life for 8 s"
    with pytest.raises(HostLost, match=told):
        run_on()
    striking.join()
    # It is said again instead of waited for.
    with pytest.raises(HostLost):
        session.measure(placement, 4)
    session.close()
    assert len(workers) == 4
    wait_until(lambda: not any(map(runs, workers)))


def runs(process: int) -> bool:
    return Path(f"/proc/{process}/exe").exists()


def wait_until(condition: Callable[[], bool], seconds: float = 120) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def cells() -> list[str]:
    """The code cells of the notebook, in their order."""
    notebook = json.loads((ROOT / "examples" / "ray_cluster.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


KERNEL = """
import json, os, sys, time
from tests.support.programs.ray_clusters import PATIENT
names = {"PATIENT": PATIENT}
os.chdir(sys.argv[1])
for cell in json.load(sys.stdin):
    exec(cell, names)
session = names["ClusterSession"](names["task"], cluster="auto", time_limits=PATIENT)
session.prepare()
print("runs", *session.process_ids, session.folder, flush=True)
time.sleep(300)
"""


@pytest.mark.usefixtures("free")
def test_the_notebooks_cells_run_one_after_the_other_and_a_killed_kernel_leaves_nothing(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """In a program that has read them from nowhere; on a machine that is busy."""
    patient = [
        cell.replace('cluster="auto"', 'cluster="auto", time_limits=PATIENT') for cell in cells()
    ]
    errors = tmp_path / "errors"
    with errors.open("w") as said, program(cluster, KERNEL, str(tmp_path), stderr=said) as kernel:
        assert kernel.stdin is not None
        assert kernel.stdout is not None
        kernel.stdin.write(json.dumps(patient))
        kernel.stdin.close()
        lines = [kernel.stdout.readline() for _ in range(4)]
        kernel.kill()
    session, measured, trained, started = lines
    assert session == "4 workers on 2 hosts\n", errors.read_text()[-3000:]
    assert re.fullmatch(r"[1-4](-[1-4])*: \d+\.\d ms a minibatch\n", measured)
    loss = re.fullmatch(r"loss (\d\.\d{3}) after 3 epochs\n", trained)
    assert loss is not None, errors.read_text()[-3000:]
    # Of ten classes that the pixels tell, it has learned something.
    assert float(loss[1]) < 2.0
    assert (tmp_path / "runs" / "notebook" / "model.pt").exists()
    *workers, folder = started.removeprefix("runs ").split()
    assert len(workers) == 4
    wait_until(lambda: not any(runs(int(worker)) for worker in workers))
    wait_until(lambda: not Path(folder).exists())


def program(
    cluster: RayCluster, code: str, *arguments: str, stderr: Any = subprocess.PIPE
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**cluster.environment, "RAY_ADDRESS": cluster.address},
    )


@pytest.mark.slow
@pytest.mark.usefixtures("free")
def test_hosts_that_are_in_use_or_lost_cost_no_sample(
    cluster: RayCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session has one; then its actor ends, then its node, whose place another takes."""
    captured = capture(ModelReference.of(counting))
    first, second = (Host(name=name, accelerators=2) for name in cluster.addresses)
    link = Link(bandwidth_bytes_per_second=1e9)
    hosts = Cluster(hosts=(first, second), within_host=link, between_hosts=link)
    one = OptimizerSpec(name="sgd", options={"lr": 1.0, "momentum": 0.0})
    placement = in_a_row(captured.graph, 0, 1, 2, 3)
    document = file_of(captured, placement, Method(policy="stash"), one)
    limits = replace(PATIENT, gathering_seconds=3)
    alone = Cluster(hosts=(second,), within_host=link)
    other = ClusterSession(captured, 2, cluster=cluster.address, hosts=alone, time_limits=limits)
    look_until_it_has_returned(monkeypatch, lambda: other._closed)
    lose = Mock(side_effect=RayHost.lose)
    monkeypatch.setattr(RayHost, "lose", lambda host, reason: lose(host, reason))

    def kill(process: int) -> None:
        lose.reset_mock()
        os.kill(process, signal.SIGKILL)
        # An actor outlives its raylet by seconds, in which an epoch or two could be trained.
        wait_until(lambda: lose.called)

    strikes: dict[int, Callable[[], object]] = {
        1: other.close,
        3: lambda: kill(cluster.actor(1)),
        5: lambda: kill(cluster.process(1, "/raylet")),
        # It would fail if the last node had no actor.
        7: lambda: cluster.actor(2),
    }
    helps = iter([lambda: None, lambda: cluster.join(4)])
    notes: list[str] = []

    def strike(report: EpochReport) -> None:
        strikes.get(report.epoch, lambda: None)()

    def help_(note: str) -> None:
        notes.append(note)
        if "cannot be reached" in note:
            next(helps)()

    trainer = PipelineTrainer(
        document.model_copy(update={"cluster": hosts}),
        model=captured,
        elastic=Elastic(1, 4),
        cluster=cluster.address,
        time_limits=limits,
        out=tmp_path,
        observer=TrainerCallbacks(on_epoch=strike, on_note=help_),
    )
    with other:
        result = trainer.fit(every_sample(), epochs=8)
    assert counts(result.state_dict) == {(f"layers.{layer}.weight", 8.0) for layer in range(4)}
    missing = f"host {second.name} is missing or in use: training begins with 2 of 4"
    assert notes[0].startswith(missing)
    given_up, returned = ((2, 3), (), "1-1"), ((), (2, 3), "1-1-1-1")
    changes = [(one.given_up, one.returned, one.configuration) for one in changes_in(tmp_path)]
    assert changes == [returned, given_up, returned, given_up, returned]
