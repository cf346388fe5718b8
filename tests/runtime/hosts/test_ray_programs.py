"""Programs on a Ray cluster: from outside, in a notebook, killed, or with a lost host."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import HostLost
from drlpp.runtime import ClusterSession, RunOptions
from drlpp.schedule.method import Method
from tests.support.models.forked import order, placements, samples
from tests.support.programs.documented_commands import ROOT
from tests.support.programs.ray_clusters import PATIENT, RayCluster
from tests.support.training.placement_files import ADAM

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def program(cluster: RayCluster, code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**cluster.environment, "RAY_ADDRESS": cluster.address},
    )


def test_a_frozen_host_is_lost_and_no_worker_is_left(
    captured: CapturedModel, cluster: RayCluster
) -> None:
    """It answers nobody, though its workers still run; they end with it."""
    placement = placements(captured)["straight"]
    limits = replace(PATIENT, host_silence_seconds=8)
    with ClusterSession(captured, cluster=cluster.address, time_limits=limits) as session:
        session.use_samples(*samples())
        deployment = session.deploy(placement, Method(policy="stash"), ADAM)
        workers = session.process_ids
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
    assert len(workers) == 4
    wait_until(lambda: not any(map(runs, workers)))


def runs(process: int) -> bool:
    return Path(f"/proc/{process}/exe").exists()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


KILLED = """
import sys, time
from tests.support.programs.ray_clusters import PATIENT
from drlpp.runtime import ClusterSession
session = ClusterSession(
    "tests.support.models.small:forked", cluster=sys.argv[1], time_limits=PATIENT
)
session.worker_group.prepare()
print("runs", *session.process_ids, session.folder, flush=True)
time.sleep(300)
"""


def test_a_killed_controller_leaves_nothing(cluster: RayCluster) -> None:
    with program(cluster, KILLED, cluster.address) as killed:
        assert killed.stdout is not None
        # Ray prints before it what it noticed late of a node that an earlier test has ended.
        said = next(line for line in killed.stdout if line.startswith("runs "))
        *workers, folder = said.removeprefix("runs ").split()
        assert len(workers) == 4
        killed.kill()
    wait_until(lambda: not any(runs(int(worker)) for worker in workers))
    wait_until(lambda: not Path(folder).exists())


OUTSIDE = """
import sys
from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.schedule.method import Method
from tests.support.models.forked import largest_difference, order, placements, samples
from tests.support.programs.ray_clusters import PATIENT
from tests.support.training.placement_files import ADAM

captured = capture(ModelReference.named("tests.support.models.small:forked"))
method = Method(policy="pipeoptim")
with ClusterSession(captured, cluster=sys.argv[1], time_limits=PATIENT) as session:
    hosts = session.worker_group.hosts.hosts
    # The cluster's machines have none of this program's files.
    assert not any(host.folder == str(session.folder) for host in hosts)
    session.use_samples(*samples())
    placement = placements(captured)["straight"]
    for _ in range(2):
        deployment = session.deploy(placement, method, ADAM)
        session.run(deployment, 12, RunOptions(order=order(12)))
        found = session.collect(deployment)[0]
        # Others take their place.
        hosts[1].kill()
expected = run_reference(
    captured, placement, Minibatches(*samples(), order(12)), 12, method=method, optimizer=ADAM
)
print(len(hosts), largest_difference(found, expected.state) < 1e-9)
"""


def test_a_program_outside_of_the_cluster_trains_to_the_references_weights(
    cluster: RayCluster,
) -> None:
    with program(cluster, OUTSIDE, cluster.client_address) as outside:
        said, errors = outside.communicate(timeout=200)
    assert (outside.returncode, said) == (0, "2 True\n"), errors[-3000:]


def cells() -> list[str]:
    """The code cells of the notebook, in their order."""
    notebook = json.loads((ROOT / "examples" / "ray_cluster.ipynb").read_text())
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]


NOTEBOOK = """
import json, os, sys
names = {}
os.chdir(sys.argv[1])
for cell in json.load(sys.stdin):
    exec(cell, names)
"""


def test_the_notebooks_cells_run_one_after_the_other(cluster: RayCluster, tmp_path: Path) -> None:
    """In a program that has read them from nowhere, as a kernel; on a machine that is busy."""
    patient = ["from tests.support.programs.ray_clusters import PATIENT"]
    patient += [
        cell.replace('cluster="auto"', 'cluster="auto", time_limits=PATIENT') for cell in cells()
    ]
    with program(cluster, NOTEBOOK, str(tmp_path)) as kernel:
        said, errors = kernel.communicate(json.dumps(patient), timeout=200)
    assert kernel.returncode == 0, errors[-3000:]
    session, measured, trained = said.splitlines()
    assert session == "4 workers on 2 hosts"
    assert re.fullmatch(r"[1-4](-[1-4])*: \d+\.\d ms a minibatch", measured)
    loss = re.fullmatch(r"loss (\d\.\d{3}) after 3 epochs", trained)
    assert loss is not None
    # Of ten classes that the pixels tell, it has learned something.
    assert float(loss[1]) < 2.0
    assert (tmp_path / "runs" / "notebook" / "model.pt").exists()


def test_the_page_shows_a_cell_of_the_notebook() -> None:
    page = (ROOT / "docs" / "clusters.md").read_text()
    section = page.partition("\n## A notebook\n")[2].partition("\n## ")[0]
    shown = re.findall(r"```python\n(.*?)\n```", section, re.DOTALL)
    assert shown
    assert set(shown) <= set(cells())


ON_A_DYING_CLUSTER = """
import sys
from drlpp.cli.command_line import run_program
def program():
    from drlpp.runtime import ClusterSession, RunOptions, TimeLimits
    from tests.support.models.forked import order, placements, samples
    limits = TimeLimits(host_silence_seconds=15, gathering_seconds=60)
    model = "tests.support.models.small:forked"
    with ClusterSession(model, cluster=sys.argv[1], time_limits=limits) as session:
        session.use_samples(*samples())
        deployment = session.deploy(placements(session.captured)["straight"])
        while True:
            session.run(deployment, 20, RunOptions(order=order(20)))
            print("runs", flush=True)
run_program(program, "program.py")
"""


@pytest.mark.slow
def test_a_dead_head_is_said_in_words(cluster: RayCluster) -> None:
    """Last, since there is no cluster after it. Ray would end the program without a word."""
    with program(cluster, ON_A_DYING_CLUSTER, cluster.address) as dying:
        assert dying.stdout is not None
        assert any(line == "runs\n" for line in dying.stdout)
        os.kill(cluster.process(0, "/gcs_server"), signal.SIGKILL)
        _, said = dying.communicate(timeout=120)
    assert dying.returncode == 1, said
    (line,) = [line for line in said.splitlines() if line.startswith("program.py: ")]
    assert f"the head of the Ray cluster, {cluster.address}, has ended or is cut off" in line
