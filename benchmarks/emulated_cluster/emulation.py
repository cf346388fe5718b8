"""A cluster on one machine: what ``cluster.yaml`` describes, to run commands on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Self

from benchmarks.emulated_cluster.control_groups import (
    NO_CONTROL_GROUPS,
    ControlGroups,
    Hierarchy,
    check_quotas,
)
from benchmarks.emulated_cluster.names import (
    MARK,
    end_processes,
    in_use,
    marked_processes,
    name_in,
    new_name,
)
from benchmarks.emulated_cluster.network import (
    LEAST_DELAY_SECONDS,
    Network,
    check_network,
    network_names,
    network_unavailable,
    remove_namespaces,
)
from benchmarks.emulated_cluster.programs import HostProgram
from benchmarks.emulated_cluster.ray_hosts import Place, RayHosts
from drlpp.errors import InvalidInput, RunFailure
from drlpp.specs.cluster import Cluster, Link


def available() -> str | None:
    """Return why the kernel cannot emulate hosts and accelerators here; None if it can."""
    if os.geteuid() != 0:
        return "only root may make network namespaces and control groups"
    if Hierarchy.found() is None:
        return NO_CONTROL_GROUPS
    return network_unavailable(new_name())


class EmulatedCluster:
    """Hosts, accelerators and links on this machine, for as long as the ``with`` block lasts::

        with EmulatedCluster(read_document("cluster.yaml", Cluster)) as emulated:
            print(emulated.description)
            print(emulated.run(["python", "train_agent.py", "--cluster", "auto"], timeout=300))

    Afterwards nothing is left of it, whatever happened: no process, namespace or control group.

    Args:
        cluster: its hosts, speeds and links. ``speed`` is the part of a core that an accelerator
            has; memories are not limited.
        quotas: whether control groups slow accelerators down. Without them the command has to, by
            dilation, as ``ClusterSession(speeds=…)`` does. A quota hides the bubbles of a schedule
            that flushes; dilation does not.

    Attributes:
        cluster: as given.

    Raises:
        InvalidCluster: this machine cannot be such a cluster.
        RunFailure: the kernel refuses (:func:`available` says so beforehand).
    """

    def __init__(self, cluster: Cluster, *, quotas: bool = True) -> None:
        check_quotas(cluster.speeds)
        check_network(cluster)
        self.cluster = cluster
        self._quotas = quotas
        self._name = new_name()
        self._programs: list[HostProgram] = []
        self._groups: ControlGroups | None = None
        self._ray: RayHosts | None = None
        self._ray_folder: Path | None = None

    def __enter__(self) -> Self:
        if (reason := available()) is not None:
            raise RunFailure(f"no cluster can be emulated here: {reason}")
        with ExitStack() as building:
            self._network = Network(self.cluster, self._name)
            building.callback(self._network.remove)
            if self._quotas:
                self._groups = ControlGroups(self.cluster.speeds, self._name)
                building.callback(self._groups.remove)
            building.callback(end_processes, self._name)
            building.callback(self.stop_ray)
            self._ending = building.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.close()

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of every host, in the order of ``cluster.host_names``."""
        return self._network.addresses

    def start(self, command: Sequence[str]) -> HostProgram:
        """Start a command on the first host of a Ray cluster, which has a node on every host.

        There it is the cluster ``auto``. Ray is started with the first command, and stays.

        Raises:
            InvalidInput: there is no command.
        """
        if not command:
            raise InvalidInput("there is no command to run; give one, such as `python train.py`")
        self._stop()
        self._programs.append(self.ray.start(command))
        return self._programs[-1]

    @property
    def ray(self) -> RayHosts:
        """Ray on the hosts."""
        if self._ray is None:
            # Not where temporary files go: names of sockets there may be too long for Ray.
            self._ray_folder = Path(tempfile.mkdtemp(prefix=f"{self._name}-", dir="/tmp"))
            self._ray = RayHosts(self.places, self.environment, self._ray_folder, self._name)
        return self._ray

    @property
    def environment(self) -> dict[str, str]:
        """Of every process on the hosts."""
        return {
            # Emulated hosts have no names, and torch warns of each.
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **os.environ,
            MARK: self._name,
            "GLOO_SOCKET_IFNAME": self._network.interface,
            "TP_SOCKET_IFNAME": self._network.interface,
        }

    def run(
        self,
        command: Sequence[str],
        timeout: float | None = None,
        on_output: Callable[[str], object] | None = None,
    ) -> str:
        """:meth:`start` a command and wait for its end.

        Args:
            command: with its arguments.
            timeout: in seconds.
            on_output: called with what it prints, as it does.

        Returns:
            What it printed, errors included.

        Raises:
            WorkerLost: the command failed.
            TrialTimeout: it did not end in time.
        """
        try:
            return self.start(command).wait(timeout, on_output)
        finally:
            self._stop()

    def _stop(self) -> None:
        """End what runs, but Ray."""
        while self._programs:
            self._programs.pop().stop()

    def stop_ray(self) -> None:
        """End Ray on all hosts, and all that runs."""
        self._stop()
        if self._ray is not None:
            self._ray.stop()
            self._ray = None
            end_processes(self._name)
        if self._ray_folder is not None:
            shutil.rmtree(self._ray_folder, ignore_errors=True)
            self._ray_folder = None

    def process_ids(self, host: str) -> list[int]:
        """Return the workers on a host's accelerators that run now.

        Raises:
            InvalidInput: there is no such host, or no quotas, which tell where a process belongs.
        """
        if not self._quotas:
            raise InvalidInput("without quotas it is not known which host a process is of")
        return [
            int(process)
            for group in self.places[self._number(host)].groups
            for process in group.read_text().split()
        ]

    def cut(self, host: str) -> None:
        """Cut a host's network: what is sent to or from it is lost until :meth:`restore`."""
        self._network.cut(self._number(host))

    def restore(self, host: str) -> None:
        """Connect a host again."""
        self._network.restore(self._number(host))

    @property
    def description(self) -> str:
        """What is emulated, and by what means, in a few lines."""
        cluster = self.cluster
        accelerators = (
            "time dilation, by the command itself "
            f"(speeds {', '.join(f'{speed:g}' for speed in cluster.speeds)})"
            if self._groups is None
            else self._groups.description
        )
        named = map(" ".join, zip(cluster.host_names, self.addresses, strict=True))
        lines = [
            f"accelerators: {accelerators}",
            f"hosts: network namespaces {', '.join(named)}",
            f"within a host: {_told(cluster.within_host)}, shared by its accelerators",
        ]
        if cluster.between_hosts is not None:
            lines.append(f"between hosts: {_told(cluster.between_hosts)}, each way")
        lines += [
            f"network of {line.name}: {_told(line.network)}, each way"
            for line in cluster.hosts
            if line.network is not None
        ]
        return "\n".join(lines)

    @property
    def places(self) -> list[Place]:
        """Where the processes of every host run."""
        groups = () if self._groups is None else self._groups.folders
        found = []
        for host, name in enumerate(self.cluster.host_names):
            mine = [number for number, of in enumerate(self.cluster.host_of) if of == host]
            found.append(
                Place(
                    host=name,
                    address=self.addresses[host],
                    prefix=tuple(self._network.prefix(host)),
                    groups=tuple(groups[number] / "cgroup.procs" for number in mine if groups),
                    accelerators=len(mine),
                    network=self._network.namespace(host),
                )
            )
        return found

    def _number(self, host: str) -> int:
        if host not in self.cluster.host_names:
            raise InvalidInput(
                f"there is no host {host!r}; the cluster has {', '.join(self.cluster.host_names)}"
            )
        return self.cluster.host_names.index(host)


def _told(link: Link) -> str:
    text = f"{link.bandwidth_bytes_per_second * 8 / 1e6:g} Mbit/s"
    if link.latency_seconds >= LEAST_DELAY_SECONDS:
        text += f", {link.latency_seconds * 1e6:g} µs"
    return text


def remove_leftovers() -> list[str]:
    """Remove what clusters have left whose own process was killed.

    Returns:
        Their names.
    """
    hierarchy = Hierarchy.found()
    folders = {
        path: name for path in Path(tempfile.gettempdir()).iterdir() if (name := name_in(path.name))
    }
    names = {*network_names(), *marked_processes().values(), *folders.values()}
    if hierarchy is not None:
        names |= hierarchy.names()
    left = sorted(name for name in names if not in_use(name))
    for name in left:
        end_processes(name)
        remove_namespaces(name)
        if hierarchy is not None:
            hierarchy.remove(name)
    for path, name in folders.items():
        if name in left:
            shutil.rmtree(path, ignore_errors=True)
    return left


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the block like Ctrl-C, so that it cleans up."""

    def interrupt(number: int, _frame: FrameType | None) -> None:
        for each in (signal.SIGINT, *ending):
            signal.signal(each, signal.SIG_IGN)
        sys.exit(128 + number)

    ending = (signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, *ending)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
