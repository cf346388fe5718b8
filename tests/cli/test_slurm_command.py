"""``srun drlpp slurm``: under a stand-in for srun, which starts a task on each of two hosts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import EmulatedCluster
from benchmarks.emulated_cluster.names import MARK
from benchmarks.emulated_cluster.ray_hosts import ALONE
from drlpp.cli.slurm_command import SlurmTask
from drlpp.errors import InvalidInput
from tests.support.programs.emulated_clusters import FAST, names_left, needs_kernel, two_hosts

JOB = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_NNODES": "2", "SLURM_JOB_ID": "7123"}

DRLPP = [sys.executable, "-c", "from drlpp.cli.main import main; main()"]

PROGRAM = """
import sys, time
from drlpp.runtime import ClusterSession
from tests.support.programs.ray_clusters import PATIENT
with ClusterSession("tests.support.models.small:forked", cluster="auto", time_limits=PATIENT) as s:
    s.worker_group.prepare()
    print("workers", s.accelerators, "hosts", len(set(s.host_of.values())), flush=True)
    time.sleep(float(sys.argv[2]))
sys.exit(int(sys.argv[1]))
"""


def test_a_task_knows_the_first_node_and_ports_of_its_own() -> None:
    task = SlurmTask.of({**JOB, "SLURM_JOB_NODELIST": "gpu10,gpu9", "SLURM_CPUS_PER_TASK": "8"})
    assert (task.number, task.tasks, task.head) == (1, 2, "gpu10")
    assert task.options == ["--num-cpus", "8"]
    other = SlurmTask.of({**JOB, "SLURM_JOB_ID": "7124", "SLURM_JOB_NODELIST": "gpu10"})
    assert {task.port, task.port + 1}.isdisjoint({other.port, other.port + 1})


def test_a_folded_list_of_nodes_is_unfolded_by_slurm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(
        '#!/bin/sh\n[ "$*" = "show hostnames gpu[3-4]" ] && printf "gpu3\\ngpu4\\n"'
    )
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert SlurmTask.of({**JOB, "SLURM_JOB_NODELIST": "gpu[3-4]"}).head == "gpu3"


def test_what_is_no_job_of_slurm_is_refused() -> None:
    with pytest.raises(InvalidInput, match="SLURM_PROCID is not set: this command is for jobs"):
        SlurmTask.of({})
    with pytest.raises(InvalidInput, match="4 tasks on 2 nodes; expected one on each"):
        SlurmTask.of({**JOB, "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "a,b"})


@pytest.fixture(scope="module")
def emulated() -> Iterator[EmulatedCluster]:
    with EmulatedCluster(two_hosts(FAST)) as emulated:
        yield emulated
    assert names_left(os.getpid()) == []


def srun(emulated: EmulatedCluster, folder: Path, *command: str) -> list[subprocess.Popen[str]]:
    """Start a task on every host, as ``srun --ntasks-per-node=1 drlpp slurm -- COMMAND`` does."""
    tasks = []
    places = emulated._places()
    for number, place in enumerate(places):
        environment = {
            **emulated._environment(),
            **ALONE,
            "PYTHONPATH": str(Path.cwd()),
            "SLURM_PROCID": str(number),
            "SLURM_NTASKS": str(len(places)),
            "SLURM_NNODES": str(len(places)),
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NODELIST": ",".join(emulated.addresses),
            "SLURM_CPUS_PER_TASK": "2",
        }
        assert MARK in environment
        with (folder / f"task-{number}.log").open("w") as log:
            tasks.append(
                subprocess.Popen(
                    [*place.prefix, *DRLPP, "slurm", "--", *command],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=environment,
                )
            )
    return tasks


@needs_kernel
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", [0, 3])
def test_all_tasks_end_with_the_programs_exit_code(
    emulated: EmulatedCluster, tmp_path: Path, code: int
) -> None:
    tasks = srun(emulated, tmp_path, sys.executable, "-c", PROGRAM, str(code), "0")
    ended = [task.wait(200) for task in tasks]
    said = [(tmp_path / f"task-{number}.log").read_text() for number in range(2)]
    assert ended == [code, code], said
    assert "workers 4 hosts 2" in said[0]
    assert said[1] == ""


@needs_kernel
@pytest.mark.system
@pytest.mark.timeout(300)
def test_a_job_that_is_cancelled_ends_everywhere(emulated: EmulatedCluster, tmp_path: Path) -> None:
    """Slurm sends SIGTERM to every task."""
    tasks = srun(emulated, tmp_path, sys.executable, "-c", PROGRAM, "0", "600")
    log = tmp_path / "task-0.log"
    give_up = time.monotonic() + 200
    while "workers 4" not in log.read_text():
        assert time.monotonic() < give_up, log.read_text()
        time.sleep(0.2)
    for task in tasks:
        task.send_signal(signal.SIGTERM)
    assert [task.wait(60) for task in tasks] == [128 + signal.SIGTERM] * 2
