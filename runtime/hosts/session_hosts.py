"""Where the workers of a session run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from drlpp.errors import InvalidInput
from drlpp.runtime.device.emulation import available_cores
from drlpp.runtime.hosts.host import WorkerHost
from drlpp.runtime.hosts.host_protocol import Handshake
from drlpp.runtime.hosts.launch import check_joined, controller
from drlpp.runtime.hosts.local_host import LocalHost
from drlpp.runtime.hosts.remote_host import RemoteHost
from drlpp.runtime.ipc.time_limits import DEFAULT_TIME_LIMITS, TimeLimits

_WORKERS_PER_CORE, _LEAST_MOST_WORKERS = 4, 64
"""More workers than these only wait for each other and fill the memory. A file may ask for more."""


@dataclass(frozen=True)
class Hosts:
    """The hosts of a session, that of the controller first.

    ``machines`` gives for every worker which machine it runs on, and the cores that may be used
    there: emulated hosts may share one.
    """

    hosts: tuple[WorkerHost, ...]
    machines: tuple[tuple[str, tuple[int, ...]], ...]

    @cached_property
    def of_worker(self) -> dict[int, WorkerHost]:
        """The host of every worker."""
        return {worker: host for host in self.hosts for worker in host.workers}

    @property
    def host_names(self) -> tuple[str, ...]:
        """The name of every worker's host."""
        return tuple(self.of_worker[worker].name for worker in sorted(self.of_worker))


def check_workers(workers: int) -> None:
    """Check that this number of workers can be had.

    Raises:
        InvalidInput: saying how many.
    """
    if workers < 1:
        raise InvalidInput(f"workers is {workers}; at least 1 is needed")
    launched = controller()
    if launched is not None and workers > launched.launch.size:
        raise InvalidInput(
            f"{workers} workers were asked for, but torchrun has started {launched.launch.size} "
            "processes, each of which is one; see --nproc-per-node"
        )
    cores = len(available_cores())
    most = max(_LEAST_MOST_WORKERS, _WORKERS_PER_CORE * cores)
    if launched is None and workers > most:
        raise InvalidInput(
            f"{workers} workers were asked for, and each is a process; up to {most} are started "
            f"on this machine of {cores} cores"
        )


def hosts_for(workers: int, folder: Path, limits: TimeLimits = DEFAULT_TIME_LIMITS) -> Hosts:
    """Return where a session's workers run: on this machine, or as ``torchrun`` has spread them.

    Args:
        workers: how many.
        folder: of the session.
        limits: how long to wait for a host.

    Raises:
        InvalidInput: ``torchrun`` has started this process, which has not joined the others.
        HostLost: a host does not answer.
    """
    here = tuple(available_cores())
    check_joined()
    launched = controller()
    if launched is None:
        machines = (("localhost", here),) * workers
        return Hosts((LocalHost(range(workers), folder, limits=limits),), machines)
    if launched.in_session:
        raise InvalidInput(
            "the processes of torchrun are workers of another session; close it before the next"
        )
    host_agents = launched.host_agents()[: workers - 1]
    hellos = [launched.hello, *(hello for hello, _ in host_agents)]
    names = _names_of(hellos)
    first = LocalHost([0], folder, names[0], launched.hello.address, limits)
    hosts: list[WorkerHost] = [first]
    folders = {launched.hello.node: str(folder)}
    for (hello, connection), name in zip(host_agents, names[1:], strict=True):
        shares_clock = hello.machine == launched.hello.machine
        host = RemoteHost(hello, connection, name, folder, limits, shares_clock=shares_clock)
        folders[hello.node] = host.open(folders.get(hello.node))
        hosts.append(host)
    launched.in_session = True
    return Hosts(tuple(hosts), tuple((hello.machine, hello.cores) for hello in hellos))


def release_hosts() -> None:
    """Let another session have the hosts of this launch, if it is one."""
    launched = controller()
    if launched is not None:
        launched.in_session = False


def _names_of(hellos: Sequence[Handshake]) -> list[str]:
    """Return names of hosts; where several call themselves the same, with their numbers."""
    nodes: dict[str, set[int]] = {}
    for hello in hellos:
        nodes.setdefault(hello.host_name, set()).add(hello.node)
    return [
        hello.host_name if len(nodes[hello.host_name]) == 1 else f"{hello.host_name}-{hello.node}"
        for hello in hellos
    ]
