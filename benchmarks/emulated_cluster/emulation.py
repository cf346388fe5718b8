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
from benchmarks.emulated_cluster.job import Job, Place
from benchmarks.emulated_cluster.names import (
    MARK,
    end_processes,
    in_use,
    marked_processes,
    name_in,
    new_name,
)
from benchmarks.emulated_cluster.network import (
    Network,
    network_names,
    network_unavailable,
    remove_namespaces,
)
from benchmarks.emulated_cluster.ray_hosts import HostProgram, RayHosts
from drlpp.errors import InvalidCluster, InvalidInput, RunFailure
from drlpp.specs.cluster import Cluster, Link

_LOOPBACK = "127.77.0"
_FIRST_LOOPBACK = 100


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
        dilated: do without root, namespaces and control groups. All hosts share this machine's
            loopback device, nothing is slowed down, and the command has to emulate the speeds by
            itself, as ``ClusterSession(speeds=cluster.speeds)`` does.
        quotas: whether control groups slow accelerators down. Without them the command has to, by
            dilation as well, but hosts and links are emulated. A quota hides the bubbles of a
            schedule that flushes; dilation does not.

    Attributes:
        cluster: as given.
        addresses: of every host, in the order of ``cluster.host_names``.

    Raises:
        InvalidCluster: this machine cannot be such a cluster.
        RunFailure: the kernel refuses (:func:`available` says so beforehand).
    """

    def __init__(self, cluster: Cluster, *, dilated: bool = False, quotas: bool = True) -> None:
        _check_order(cluster)
        check_quotas(cluster.speeds)
        self.cluster = cluster
        self.addresses = tuple(
            f"{_LOOPBACK}.{_FIRST_LOOPBACK + host}" for host in range(len(cluster.host_names))
        )
        self._dilated = dilated
        self._quotas = quotas and not dilated
        self._name = new_name()
        self._network: Network | None = None
        self._groups: ControlGroups | None = None
        self._folder = Path()
        self._jobs: list[Job] = []
        self._programs: list[HostProgram] = []
        self._ray: RayHosts | None = None
        self._ray_folder: Path | None = None
        self._ending = ExitStack()

    def __enter__(self) -> Self:
        if not self._dilated and (reason := available()) is not None:
            raise RunFailure(f"no cluster can be emulated here: {reason}")
        with ExitStack() as building:
            self._folder = Path(
                building.enter_context(tempfile.TemporaryDirectory(prefix=f"{self._name}-"))
            )
            if not self._dilated:
                self._network = Network(self.cluster, self._name)
                building.callback(self._network.remove)
                self.addresses = self._network.addresses
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

    def start(self, command: Sequence[str]) -> HostProgram:
        """Start a command on the first host of a Ray cluster, which has a node on every host.

        There it is the cluster ``auto``. Ray is started with the first command, and stays.

        Raises:
            InvalidInput: there is no command.
        """
        self.stop()
        self._programs.append(self.ray.start(_checked(command)))
        return self._programs[-1]

    @property
    def ray(self) -> RayHosts:
        """Ray on the hosts."""
        if self._ray is None:
            # Not where temporary files go: names of sockets there may be too long for Ray.
            self._ray_folder = Path(tempfile.mkdtemp(prefix=f"{self._name}-", dir="/tmp"))
            self._ray = RayHosts(self._places(), self._environment(), self._ray_folder, self._name)
        return self._ray

    def start_ranks(self, command: Sequence[str]) -> Job:
        """Start a command on every accelerator by ``torchrun`` on every host; one at a time.

        Rank 0 is the first accelerator of the first host, and so on in the cluster's order.

        Raises:
            InvalidInput: there is no command.
        """
        self.stop()
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        places, environment = self._places(), self._environment()
        self._jobs.append(Job(_checked(command), places, environment, folder, self._name))
        return self._jobs[-1]

    def _environment(self) -> dict[str, str]:
        interface = "lo" if self._network is None else self._network.interface
        return {
            # Emulated hosts have no names, and torch warns of each.
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            **os.environ,
            MARK: self._name,
            "GLOO_SOCKET_IFNAME": interface,
            "TP_SOCKET_IFNAME": interface,
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
            self.stop()

    def run_ranks(self, command: Sequence[str], timeout: float | None = None) -> str:
        """:meth:`start_ranks` a command and wait for its end, as :meth:`run` does.

        Returns:
            What rank 0 printed, errors included.
        """
        try:
            return self.start_ranks(command).wait(timeout)
        finally:
            self.stop()

    def stop(self) -> None:
        """End what runs, but Ray."""
        while self._programs:
            self._programs.pop().stop()
        while self._jobs:
            self._jobs.pop().stop()
            if self._ray is None:
                end_processes(self._name)

    def stop_ray(self) -> None:
        """End Ray on all hosts, and all that runs."""
        self.stop()
        if self._ray is not None:
            self._ray.stop()
            self._ray = None
            end_processes(self._name)
        if self._ray_folder is not None:
            shutil.rmtree(self._ray_folder, ignore_errors=True)
            self._ray_folder = None

    def process_ids(self, host: str) -> list[int]:
        """Return the processes on a host's accelerators that run now: workers, or ranks."""
        if self._groups is None:
            raise InvalidInput("without quotas it is not known which host a process is of")
        number = self._number(host)
        return [
            int(process)
            for folder, of in zip(self._groups.folders, self.cluster.host_of, strict=True)
            if of == number
            for process in (folder / "cgroup.procs").read_text().split()
        ]

    def cut(self, host: str) -> None:
        """Cut a host's network: what is sent to or from it is lost until :meth:`restore`."""
        self._links().cut(self._number(host))

    def restore(self, host: str) -> None:
        """Connect a host again."""
        self._links().restore(self._number(host))

    @property
    def description(self) -> str:
        """What is emulated, and by what means, in a few lines."""
        accelerators = (
            "time dilation, by the command itself "
            f"(speeds {', '.join(f'{speed:g}' for speed in self.cluster.speeds)})"
            if self._groups is None
            else self._groups.description
        )
        if self._network is None:
            return (
                f"accelerators: {accelerators}\n"
                "hosts: none, all are at this machine's loopback device\n"
                "links: not emulated"
            )
        lines = [
            f"accelerators: {accelerators}",
            "hosts: network namespaces "
            + ", ".join(map(" ".join, zip(self.cluster.host_names, self.addresses, strict=True))),
            f"within a host: {self._link(self.cluster.within_host, 0)}, shared by its accelerators",
        ]
        for level, link in (
            ("hosts", self.cluster.between_hosts),
            ("racks", self.cluster.between_racks),
        ):
            if link is not None:
                lines.append(f"between {level}: {self._link(link, 1)}, each way")
        lines += [
            f"network of {line.name}: {self._link(line.network, 1)}, each way"
            for line in self.cluster.hosts
            if line.network is not None
        ]
        return "\n".join(lines)

    def delayed_by(self, link: Link, level: int) -> str | None:
        """Return what delays messages within a host (level 0) or between hosts, None if nothing."""
        if self._network is None or not link.latency_seconds:
            return None
        return self._network.delayed_by(link.latency_seconds, within_host=level == 0)

    def _link(self, link: Link, level: int) -> str:
        text = f"{link.bandwidth_bytes_per_second * 8 / 1e6:g} Mbit/s"
        if link.latency_seconds:
            by = self.delayed_by(link, level)
            how = f"by {by}" if by else "not emulated, as this kernel has no netem"
            text += f", {link.latency_seconds * 1e6:g} µs ({how})"
        return text

    def _places(self) -> list[Place]:
        found = []
        for host, name in enumerate(self.cluster.host_names):
            mine = [number for number, of in enumerate(self.cluster.host_of) if of == host]
            found.append(
                Place(
                    host=name,
                    address=self.addresses[host],
                    prefix=() if self._network is None else tuple(self._network.prefix(host)),
                    groups=()
                    if self._groups is None
                    else tuple(self._groups.folders[number] / "cgroup.procs" for number in mine),
                    accelerators=len(mine),
                    network=None if self._network is None else self._network.namespace(host),
                )
            )
        return found

    def _number(self, host: str) -> int:
        if host not in self.cluster.host_names:
            raise InvalidInput(
                f"there is no host {host!r}; the cluster has {', '.join(self.cluster.host_names)}"
            )
        return self.cluster.host_names.index(host)

    def _links(self) -> Network:
        if self._network is None:
            raise InvalidInput("a dilated cluster has no links that could be cut")
        return self._network


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


def _check_order(cluster: Cluster) -> None:
    """Check that accelerators are numbered host by host, as torchrun numbers its processes."""
    for before, after in zip(cluster.host_of, cluster.host_of[1:], strict=False):
        if after < before:
            raise InvalidCluster(
                f"the lines of host {cluster.host_names[after]!r} are apart; list them one after "
                "the other, since torchrun numbers accelerators host by host"
            )


def _checked(command: Sequence[str]) -> Sequence[str]:
    if not command:
        raise InvalidInput("there is no command to run; give one, such as `python train.py`")
    return command


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
