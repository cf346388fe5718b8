"""``srun drlpp slurm -- COMMAND``: Ray on every node of a job, and the command on the first.

One task runs on each node. Every task starts Ray there, as a child that it ends by its process id:
``ray stop`` would end other jobs' on a node that is shared. The first task waits until all nodes
have joined, runs the command and ends with its exit code. The others end when the first says so,
or when its node is gone, with the same code, so that Slurm sees one outcome.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from drlpp.errors import InvalidInput, RunFailure

if TYPE_CHECKING:
    from drlpp.runtime.hosts.on_ray.start import RayNodeProcess

_NEEDED = ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_NNODES", "SLURM_JOB_ID")
_FIRST_PORT, _PORTS = 20_000, 10_000
_POLL_SECONDS = 0.5
_LOST = 1
"""The exit code of a task whose first one is gone without having said how it ended."""


@dataclass(frozen=True)
class SlurmTask:
    """What Slurm tells a task.

    Attributes:
        number: of the task; 0 runs the command.
        tasks: how many there are, one on each node.
        head: name or address of the first task's node.
        port: of the head; at the next one the first task says how the command ended. Another job
            has others.
        cpus: of the task; None leaves them to Ray.
        gpus: of the node for this job; None leaves them to Ray.
    """

    number: int
    tasks: int
    head: str
    port: int
    cpus: int | None
    gpus: int | None

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> SlurmTask:
        """Return the task of a process that ``srun`` has started.

        Raises:
            InvalidInput: it has not, or there are several tasks on a node.
        """
        missing = [name for name in _NEEDED if name not in environment]
        if missing:
            raise InvalidInput(
                f"{missing[0]} is not set: this command is for jobs of Slurm, `srun "
                "--ntasks-per-node=1 drlpp slurm -- COMMAND`"
            )
        number, tasks, nodes, job = (int(environment[name]) for name in _NEEDED)
        if tasks != nodes:
            raise InvalidInput(
                f"there are {tasks} tasks on {nodes} nodes; expected one on each "
                "(--ntasks-per-node=1), with all of its CPUs (--cpus-per-task)"
            )
        return cls(
            number=number,
            tasks=tasks,
            head=_first_node(environment),
            port=_FIRST_PORT + 2 * (job % (_PORTS // 2)),
            cpus=_count(environment.get("SLURM_CPUS_PER_TASK")),
            gpus=_count(environment.get("SLURM_GPUS_ON_NODE")),
        )

    @property
    def options(self) -> list[str]:
        """Options of ``ray start``."""
        counts = {"--num-cpus": self.cpus, "--num-gpus": self.gpus}
        given = {name: count for name, count in counts.items() if count is not None}
        return [text for name, count in given.items() for text in (name, str(count))]


def _count(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() else None


def _first_node(environment: Mapping[str, str]) -> str:
    """Return the name of the job's first node."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    if nodes and "[" not in nodes:
        return nodes.partition(",")[0]
    # The list is folded, node[03-07,9]: Slurm unfolds it.
    done = subprocess.run(
        ["scontrol", "show", "hostnames", nodes], capture_output=True, text=True, check=True
    )
    return done.stdout.split()[0]


def slurm(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="Run on the first node.")
    ],
    address: Annotated[
        str | None,
        typer.Option(help="Of this node, where the others reach it; else what its name means."),
    ] = None,
    patience: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="For all nodes to join.")
    ] = 300.0,
) -> None:
    """Start Ray on every node of a Slurm job, and run a command there that names --cluster auto."""
    from drlpp.runtime.hosts.session_hosts import require_ray

    require_ray()
    task = SlurmTask.of(os.environ)
    # Slurm ends a job by it; what has been started is ended first.
    signal.signal(signal.SIGTERM, _end)
    # Ray's sockets are there, whose names may not be long.
    with tempfile.TemporaryDirectory(prefix="drlpp-", dir="/tmp") as folder:
        run = _first if task.number == 0 else _other
        raise typer.Exit(run(task, command, address, Path(folder), patience))


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _first(
    task: SlurmTask, command: Sequence[str], address: str | None, folder: Path, patience: float
) -> int:
    """Start the head, wait for the others, run the command, and tell them how it ended."""
    here = address or socket.gethostbyname(task.head)
    options = [*task.options, "--temp-dir", str(folder / "ray")]
    node = _node(folder, here, task, None, options)
    others: list[socket.socket] = []
    code = _LOST
    try:
        node.wait_until_started(patience)
        give_up = time.monotonic() + patience
        with socket.create_server((here, task.port + 1), backlog=task.tasks) as server:
            while len(others) < task.tasks - 1:
                others.append(_accepted(server, give_up, len(others) + 1, task.tasks))
            for other in others:
                _wait_until_joined(other, give_up)
        code = _exit_code(command, f"{here}:{task.port}")
    finally:
        for other in others:
            with other, suppress(OSError):
                other.sendall(bytes([code]))
        node.stop()
    return code


def _accepted(server: socket.socket, give_up: float, there: int, tasks: int) -> socket.socket:
    server.settimeout(max(0.01, give_up - time.monotonic()))
    try:
        return server.accept()[0]
    except TimeoutError:
        raise RunFailure(
            f"{there} of {tasks} nodes have come; the others' tasks say why, or --patience is short"
        ) from None


def _wait_until_joined(other: socket.socket, give_up: float) -> None:
    other.settimeout(max(0.01, give_up - time.monotonic()))
    name = other.getpeername()[0]
    try:
        joined = other.recv(1)
    except OSError:
        joined = b""
    if not joined:
        raise RunFailure(f"the node at {name} has not joined the Ray cluster; its task says why")
    other.settimeout(None)


def _exit_code(command: Sequence[str], cluster: str) -> int:
    """Run the command, and return its exit code."""
    program = subprocess.Popen(command, env={**os.environ, "RAY_ADDRESS": cluster})
    try:
        code = program.wait()
    except BaseException:
        # It has the time that Slurm leaves it, to write what it has.
        program.terminate()
        program.wait()
        raise
    return code if code >= 0 else 128 - code


def _other(
    task: SlurmTask, command: Sequence[str], address: str | None, folder: Path, patience: float
) -> int:
    """Start a node, and end it when the first task says that the command has ended."""
    head = socket.gethostbyname(task.head)
    with _reached(head, task.port + 1, patience) as first:
        here = address or first.getsockname()[0]
        node = _node(folder, here, task, head, task.options)
        try:
            node.wait_until_started(patience)
            first.sendall(b"+")
            first.settimeout(_POLL_SECONDS)
            while node.process.poll() is None:
                with suppress(TimeoutError):
                    told = first.recv(1)
                    return told[0] if told else _LOST
            raise RunFailure(f"Ray has ended on this node, {here}, before the command")
        finally:
            node.stop()


def _reached(head: str, port: int, patience: float) -> socket.socket:
    """Return a connection to the first task, which listens when its node has started."""
    give_up = time.monotonic() + patience
    while True:
        try:
            return socket.create_connection((head, port), timeout=patience)
        except OSError as error:
            if time.monotonic() > give_up:
                raise RunFailure(
                    f"the first node, {head}, cannot be reached within {patience:.0f} s ({error})"
                ) from None
        time.sleep(_POLL_SECONDS)


def _node(
    folder: Path, address: str, task: SlurmTask, head: str | None, options: Sequence[str]
) -> RayNodeProcess:
    from drlpp.runtime.hosts.on_ray.start import RayNodeProcess

    return RayNodeProcess(folder / "ray.log", address, task.port, head, options)
