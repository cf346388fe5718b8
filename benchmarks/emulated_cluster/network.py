"""Hosts as network namespaces, joined by veth pairs to one bridge.

The bridge lives in a namespace of its own, the switch, so that nothing of this is seen in the
machine's own network, and its firewall sees none of it::

    host-0        switch                             host-1
    [eth0]════[port-0]────bridge────[port-1]════[eth0]

Both ends of a pair (═) have the rate of the host's network, so each direction has it for itself and
all accelerators of a host share it: the ports of :mod:`drlpp.simulator.playing.network`. Within a
host all messages share the loopback device, with the rate of ``within_host``. ``delay_line.py``
delays packets between a port and the bridge: containers' kernels often have no netem.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.emulated_cluster.names import name_in
from drlpp.errors import InvalidCluster, RunFailure
from drlpp.specs.cluster import Cluster, Link

_DELAY_LINE = Path(__file__).with_name("delay_line.py")
_TOOLS = ("ip", "tc", "nsenter")
_MTU_BYTES = 9000
"""Jumbo frames: fewer packets to compute with, and headers that hardly count."""

_BURST_SECONDS = 6e-4
"""How far a link may run ahead after a pause, which makes up for late timers.

At 1 Gbit/s it is as long as the longest packets of TCP, which then need not be cut.
"""

LEAST_DELAY_SECONDS = 5e-4
"""Of the process that delays packets: it takes some 0.1 ms itself."""

_LEAST_BURST_BYTES = 2 * _MTU_BYTES + 2000
_QUEUE_BYTES = 64 * 1024 * 1024
"""Longer than what connections have on their way: links queue, and lose nothing."""

_QUEUE_PACKETS = 100_000
_LEAST_BYTES_PER_SECOND = 1000.0
_NO_LIMIT_BYTES_PER_SECOND = 4e9
"""Links that are said to be faster are left alone: no connection of one machine gets there."""

_SUBNET = "10.77.0"
_FIRST_ADDRESS = 100
_MOST_HOSTS = 255 - _FIRST_ADDRESS


@dataclass(frozen=True)
class _Pair:
    """What ``delay_line.py`` joins: a port, and a tap for the bridge."""

    port: str
    tap: str
    in_seconds: float
    out_seconds: float


class Network:
    """The namespaces and links of a cluster.

    Args:
        cluster: what to build.
        name: of the emulated cluster that they belong to.

    Attributes:
        addresses: of every host.

    Raises:
        RunFailure: the kernel refuses; nothing is left then.
    """

    interface = "eth0"

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._name = name
        self._switch = f"{name}-switch"
        hosts = range(len(cluster.host_names))
        self._namespaces = tuple(f"{name}-host-{host}" for host in hosts)
        self.addresses = tuple(f"{_SUBNET}.{_FIRST_ADDRESS + host}" for host in hosts)
        self._pairs: list[_Pair] = []
        self._line: subprocess.Popen[str] | None = None
        try:
            self._build()
        except BaseException:
            self.remove()
            raise

    def prefix(self, host: int) -> list[str]:
        """Return what to put before a command that is to run on a host."""
        # `ip netns exec` would also mount another /sys, without the control groups.
        return ["nsenter", f"--net={self.namespace(host)}"]

    def namespace(self, host: int) -> Path:
        """Return the file that stands for a host's network namespace."""
        return Path("/run/netns") / self._namespaces[host]

    def cut(self, host: int) -> None:
        """Let nothing through between a host and all others."""
        _ip(self._switch, f"link set {self._member(host)} nomaster")

    def restore(self, host: int) -> None:
        """Undo :meth:`cut`."""
        _ip(self._switch, f"link set {self._member(host)} master bridge")

    def remove(self) -> None:
        """Remove all; processes in the namespaces lose their network."""
        if self._line is not None:
            self._line.communicate()
        remove_namespaces(self._name)

    def _build(self) -> None:
        for namespace in (self._switch, *self._namespaces):
            _run("ip", "netns", "add", namespace)
        _ip(self._switch, f"link add bridge mtu {_MTU_BYTES} type bridge")
        _ip(self._switch, "link set bridge up")
        for host in range(len(self._namespaces)):
            self._add_host(host)
        if self._pairs:
            self._start_delay_line()

    def _add_host(self, host: int) -> None:
        namespace, port = self._namespaces[host], f"port-{host}"
        cluster = self._cluster
        _ip(namespace, "link set lo up")
        _ip(
            self._switch,
            f"link add {port} mtu {_MTU_BYTES} type veth "
            f"peer name eth0 netns {namespace} mtu {_MTU_BYTES}",
        )
        _ip(namespace, f"address add {self.addresses[host]}/24 dev eth0")
        _ip(namespace, "link set eth0 up")
        # BBR, where it is the default, measures the link by pausing on it; and a connection that
        # trains a model pauses all the time, without forgetting how fast its link is.
        route = f"{_SUBNET}.0/24 dev eth0 src {self.addresses[host]}"
        _ip(namespace, f"route change {route} congctl reno")
        _run(
            *self.prefix(host),
            "sh",
            "-c",
            "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle",
        )
        _shape(namespace, "lo", cluster.within_host)
        _ip(self._switch, f"link set {port} up")
        if cluster.between_hosts is not None:
            network = cluster.network(cluster.host_of.index(host))
            _shape(namespace, "eth0", network)
            _shape(self._switch, port, network)
            # What is common to all is delayed on the way in alone.
            out = network.latency_seconds - cluster.between_hosts.latency_seconds
            if network.latency_seconds >= LEAST_DELAY_SECONDS:
                self._pairs.append(_Pair(port, f"tap-{port}", network.latency_seconds, out))
                return
        _ip(self._switch, f"link set {port} master bridge")

    def _member(self, host: int) -> str:
        """Return what stands for a host's port in the bridge."""
        port = f"port-{host}"
        return next((pair.tap for pair in self._pairs if pair.port == port), port)

    def _start_delay_line(self) -> None:
        with tempfile.NamedTemporaryFile("w", prefix=f"{self._name}-") as file:
            json.dump([asdict(pair) for pair in self._pairs], file)
            file.flush()
            self._line = subprocess.Popen(
                [
                    *("nsenter", f"--net=/run/netns/{self._switch}"),
                    *(sys.executable, str(_DELAY_LINE), file.name),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                # It ends when we do, not by Ctrl-C.
                start_new_session=True,
            )
            assert self._line.stdout is not None
            if self._line.stdout.readline() != "ready\n":
                _, errors = self._line.communicate()
                raise RunFailure(f"packets cannot be delayed: {errors.splitlines()[-1]}")
        for pair in self._pairs:
            _ip(
                self._switch,
                f"link set {pair.tap} mtu {_MTU_BYTES} txqueuelen {_QUEUE_PACKETS} "
                "master bridge up",
            )


def _shape(namespace: str, device: str, link: Link) -> None:
    """Limit what leaves through a device."""
    rate = link.bandwidth_bytes_per_second
    if rate < _NO_LIMIT_BYTES_PER_SECOND:
        burst = max(_LEAST_BURST_BYTES, round(rate * _BURST_SECONDS))
        _tc(
            namespace,
            f"qdisc add dev {device} root tbf rate {round(rate * 8)}bit "
            f"burst {burst} limit {_QUEUE_BYTES}",
        )


def check_network(cluster: Cluster) -> None:
    """Check that hosts and links can be emulated.

    Raises:
        InvalidCluster: more hosts than there are addresses, or links too slow to carry anything.
    """
    if len(cluster.host_names) > _MOST_HOSTS:
        raise InvalidCluster(
            f"the cluster has {len(cluster.host_names)} hosts; at most {_MOST_HOSTS} can be "
            "emulated"
        )
    links = [cluster.within_host, cluster.between_hosts]
    for link in (*links, *(host.network for host in cluster.hosts)):
        if link is not None and link.bandwidth_bytes_per_second < _LEAST_BYTES_PER_SECOND:
            raise InvalidCluster(
                f"a link of {link.bandwidth_bytes_per_second:g} bytes per second cannot be "
                f"emulated, only {_LEAST_BYTES_PER_SECOND:g} or more; 1 Gbit/s is "
                "bandwidth_bytes_per_second: 1.25e+8"
            )


def network_unavailable(name: str) -> str | None:
    """Return why no emulated network can be built here; None if it can.

    Args:
        name: for what is tried, and removed.
    """
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        return f"{' and '.join(missing)} (of iproute2 and util-linux) cannot be found"
    namespace = f"{name}-switch"
    try:
        _run("ip", "netns", "add", namespace)
        _ip(namespace, "link add port-0 type veth peer name port-1")
        _ip(namespace, "link add bridge type bridge")
        _tc(namespace, "qdisc add dev port-0 root tbf rate 1mbit burst 20000 limit 20000")
    except RunFailure as failure:
        return str(failure)
    finally:
        remove_namespaces(name)
    return None


def network_names() -> set[str]:
    """Return the names of the emulated clusters that have namespaces."""
    if shutil.which("ip") is None:
        return set()
    return {name for line in _namespaces() if (name := name_in(line))}


def remove_namespaces(name: str) -> None:
    """Remove the namespaces of a cluster; their links go with them."""
    for namespace in _namespaces():
        if name_in(namespace) == name:
            _run("ip", "netns", "delete", namespace)


def _namespaces() -> list[str]:
    return [line.split()[0] for line in _run("ip", "netns", "list").splitlines() if line.strip()]


def _ip(namespace: str, command: str) -> None:
    _run("ip", "-n", namespace, *command.split())


def _tc(namespace: str, command: str) -> None:
    _run("tc", "-n", namespace, *command.split())


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        reason = " ".join((done.stderr or done.stdout).split())
        raise RunFailure(f"`{' '.join(command)}` failed: {reason}")
    return done.stdout
