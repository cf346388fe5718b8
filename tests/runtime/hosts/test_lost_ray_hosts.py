"""A host of a Ray cluster that is lost, in every way, is said to be; nothing of it is left."""

import os
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
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, RunOptions, TimeLimits
from drlpp.schedule.method import Method
from tests.support.models.forked import order, placements, samples
from tests.support.programs.ray_clusters import PATIENT, RayCluster
from tests.support.training.placement_files import ADAM

pytestmark = [pytest.mark.system, pytest.mark.timeout(300)]


def freeze(cluster: RayCluster) -> None:
    os.kill(cluster.actor(1), signal.SIGSTOP)


def kill_actor(cluster: RayCluster) -> None:
    os.kill(cluster.actor(1), signal.SIGKILL)


def kill_raylet(cluster: RayCluster) -> None:
    os.kill(cluster.process(1, "/raylet"), signal.SIGKILL)


@pytest.mark.parametrize(
    ("strike", "limits", "told"),
    [
        (kill_actor, PATIENT, "the process that keeps its workers has ended"),
        # It answers nobody, though its workers still run; they end with it.
        (freeze, replace(PATIENT, host_silence_seconds=15), "no sign of life for 15 s"),
        (kill_raylet, PATIENT, ""),
    ],
)
def test_a_lost_host(
    captured: CapturedModel,
    cluster: RayCluster,
    strike: Callable[[RayCluster], None],
    limits: TimeLimits,
    told: str,
) -> None:
    """Training is told in words, no worker is left, and what is left of the cluster is free."""
    placement = placements(captured)["straight"]
    with ClusterSession(captured, cluster=cluster.address, time_limits=limits) as session:
        session.use_samples(*samples())
        deployment = session.deploy(placement, Method(policy="stash"), ADAM)
        workers = session.process_ids
        session.run(deployment, 20, RunOptions(order=order(20)))
        # In the middle of a run, wherever that is.
        striking = threading.Timer(0.2, strike, [cluster])
        striking.start()

        def run_on() -> None:
            while True:
                session.run(deployment, 20, RunOptions(order=order(20)))

        with pytest.raises(HostLost, match=f"host {cluster.addresses[1]} cannot be .*{told}"):
            run_on()
        striking.join()
        # It is said again instead of waited for.
        with pytest.raises(HostLost):
            session.measure(placement, 4)
    assert len(workers) == 4
    wait_until(lambda: not any(map(runs, workers)))
    cluster.mend()
    with ClusterSession(captured, cluster=cluster.address, time_limits=PATIENT) as session:
        assert isinstance(session.measure(placement, 4), Measurement)


def runs(process: int) -> bool:
    return Path(f"/proc/{process}/exe").exists()


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    give_up = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.1)


def test_a_killed_controller_leaves_nothing(cluster: RayCluster) -> None:
    code = (
        "import time\n"
        "from tests.support.programs.ray_clusters import PATIENT\n"
        "from drlpp.runtime import ClusterSession\n"
        "session = ClusterSession('tests.support.models.small:forked', "
        f"cluster={cluster.address!r}, time_limits=PATIENT)\n"
        "session.worker_group.prepare()\n"
        "print('runs', *session.process_ids, session.folder, flush=True)\n"
        "time.sleep(300)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=cluster.environment
    ) as program:
        assert program.stdout is not None
        # Ray prints before it what it noticed late of a node that an earlier test has ended.
        said = next(line for line in program.stdout if line.startswith("runs "))
        *workers, folder = said.removeprefix("runs ").split()
        assert len(workers) == 4
        program.kill()
    wait_until(lambda: not any(runs(int(worker)) for worker in workers))
    wait_until(lambda: not Path(folder).exists())


@pytest.mark.slow
def test_a_dead_head_is_said_in_words(cluster: RayCluster) -> None:
    """Last, since there is no cluster after it. Ray would end the program without a word."""
    code = (
        "from drlpp.cli.command_line import run_program\n"
        "def program():\n"
        "    import torch\n"
        "    from drlpp.runtime import ClusterSession, RunOptions, TimeLimits\n"
        "    from tests.support.models.forked import order, placements, samples\n"
        "    limits = TimeLimits(host_silence_seconds=15, gathering_seconds=60)\n"
        "    with ClusterSession('tests.support.models.small:forked', "
        f"cluster={cluster.address!r}, time_limits=limits) as session:\n"
        "        session.use_samples(*samples())\n"
        "        deployment = session.deploy(placements(session.captured)['straight'])\n"
        "        while True:\n"
        "            session.run(deployment, 20, RunOptions(order=order(20)))\n"
        "            print('runs', flush=True)\n"
        "run_program(program, 'program.py')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=cluster.environment,
    ) as program:
        assert program.stdout is not None
        assert any(line == "runs\n" for line in program.stdout)
        os.kill(cluster.process(0, "/gcs_server"), signal.SIGKILL)
        _, said = program.communicate(timeout=120)
    assert program.returncode == 1, said
    (line,) = [line for line in said.splitlines() if line.startswith("program.py: ")]
    assert f"the head of the Ray cluster, {cluster.address}, has ended or is cut off" in line
