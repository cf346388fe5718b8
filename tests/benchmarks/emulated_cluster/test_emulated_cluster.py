"""Emulated hosts: what is refused, how fast they and their links are, and that nothing is left."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import EmulatedCluster, available
from benchmarks.emulated_cluster.control_groups import Hierarchy
from benchmarks.emulated_cluster.names import marked_processes, name_in
from drlpp.errors import InvalidCluster, InvalidInput, TrialTimeout, WorkerLost
from drlpp.specs.cluster import Cluster, Host, Link

UNAVAILABLE = available()
if UNAVAILABLE is None and len(os.sched_getaffinity(0)) < 2:
    UNAVAILABLE = "four accelerators of 0.4 of a core need two cores"

needs_kernel = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))
"""For tests with namespaces and control groups."""

FAST = Link(bandwidth_bytes_per_second=1.25e9)


def two_hosts(link: Link = FAST, accelerators: int = 2, speed: float = 0.4) -> Cluster:
    host = Host(name="host", count=2, accelerators=accelerators, speed=speed)
    return Cluster(hosts=(host,), within_host=FAST, between_hosts=link)


def names_left(process: int) -> list[str]:
    """What there is of the clusters that a process has built."""
    hierarchy = Hierarchy.found()
    groups: Sequence[str] = () if hierarchy is None else tuple(hierarchy.names())
    found = [name_in(line) for line in network_lines()]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.append(name_in((folder / "cmdline").read_text()))
    files = (path.name for path in Path(tempfile.gettempdir()).iterdir())
    found += [*groups, *marked_processes().values(), *map(name_in, files)]
    return [name for name in found if name and name.startswith(f"drlpp-{process}-")]


def network_lines() -> list[str]:
    """The machine's namespaces and devices."""
    if shutil.which("ip") is None:
        return []
    commands = (["ip", "netns", "list"], ["ip", "link"])
    return [
        line
        for command in commands
        for line in subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines()
    ]


CORES = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        (two_hosts(accelerators=CORES, speed=0.5), rf"add up to {CORES} .* multiply .* by 0\.9"),
        (two_hosts(accelerators=50 * CORES, speed=1), r"multiply every speed by 0\.00\d+"),
        (two_hosts(accelerators=1, speed=1.2), r"at least 0\.001 and at most 1"),
        (two_hosts(accelerators=1, speed=0.0001), r"at least 0\.001 and at most 1"),
        (two_hosts(Link(bandwidth_bytes_per_second=0.01), 1), r"a link of 0\.01 bytes per second"),
    ],
)
def test_what_this_machine_cannot_be_is_refused(cluster: Cluster, told: str) -> None:
    with pytest.raises(InvalidCluster, match=told):
        EmulatedCluster(cluster)


SERVER = """
import socket, sys
with socket.create_server((sys.argv[1], 7777)) as server:
    print("ready", flush=True)
    while True:
        with server.accept()[0] as peer:
            while byte := peer.recv(1):
                peer.sendall(byte)
                if byte == b"s":
                    size = 6_000_000
                    while size > 0:
                        size -= len(peer.recv(1 << 20))
                    peer.sendall(b"x")
"""
# Prints its bytes a second, and the seconds of one byte.
CLIENT = """
import json, socket, sys, time
with socket.create_connection((sys.argv[1], 7777), timeout=float(sys.argv[2])) as peer:
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    trips = []
    for _ in range(20):
        begin = time.perf_counter()
        peer.sendall(b"x")
        peer.recv(1)
        trips.append((time.perf_counter() - begin) / 2)
    peer.sendall(b"s")
    peer.recv(1)
    begin = time.perf_counter()
    peer.sendall(bytes(6_000_000))
    peer.recv(1)
    print(json.dumps([6_000_000 / (time.perf_counter() - begin), sorted(trips)[10]]))
"""


@needs_kernel
@pytest.mark.system
def test_links_are_as_asked_and_can_be_cut() -> None:
    def link(megabits: float, milliseconds: float) -> Link:
        return Link(
            bandwidth_bytes_per_second=megabits / 8 * 1e6, latency_seconds=milliseconds / 1e3
        )

    cluster = Cluster(
        hosts=(
            Host(name="a", accelerators=1, speed=0.4),
            Host(name="b", accelerators=1, speed=0.4, network=link(50, 2)),
            Host(name="c", accelerators=1, speed=0.4),
        ),
        within_host=link(2000, 0),
        between_hosts=link(200, 1),
    )
    with EmulatedCluster(cluster) as emulated:
        first = emulated.addresses[0]

        def program(host: int, *arguments: str) -> list[str]:
            return [*emulated.places[host].prefix, sys.executable, "-c", *arguments]

        def measured(host: int, timeout: str = "60") -> list[float]:
            sent = subprocess.run(
                program(host, CLIENT, first, timeout), capture_output=True, text=True, check=True
            )
            return json.loads(sent.stdout)

        with subprocess.Popen(program(0, SERVER, first), stdout=subprocess.PIPE) as server:
            try:
                assert server.stdout is not None
                server.stdout.readline()
                for host, megabits, milliseconds in ((1, 50, 2), (2, 200, 1)):
                    sent, delay = measured(host)
                    assert 0.6 < sent * 8e-6 / megabits < 1.1, (host, sent)
                    # A process delays at least; waiting for the processor comes on top.
                    assert milliseconds / 1e3 < delay < 1.5 * milliseconds / 1e3 + 4e-3, host
                emulated.cut("b")
                with pytest.raises(subprocess.CalledProcessError):
                    measured(1, timeout="1")
                emulated.restore("b")
                measured(1)
            finally:
                server.kill()
        with pytest.raises(InvalidInput, match="no host 'other'"):
            emulated.cut("other")
    assert names_left(os.getpid()) == []


@needs_kernel
@pytest.mark.system
def test_programs_use_the_hosts_and_whatever_happens_nothing_is_left() -> None:
    def use() -> None:
        with EmulatedCluster(two_hosts(accelerators=1), quotas=False) as emulated:
            assert "time dilation" in emulated.description
            assert "between hosts: 10000 Mbit/s" in emulated.description
            script = "import ray; ray.init(log_to_driver=False); print(len(ray.nodes()))"
            assert emulated.run([sys.executable, "-c", script], 120).splitlines()[-1] == "2"
            with pytest.raises(WorkerLost, match="exit code 1; it said: ValueError: lost my way"):
                emulated.run([sys.executable, "-c", "raise ValueError('lost my way')"], 90)
            with pytest.raises(TrialTimeout, match="not ended within 1 s"):
                emulated.run(["sleep", "1000"], 1)
            # In a session of its own, and nobody's child when its parent has ended.
            emulated.run(["sh", "-c", "setsid sleep 1000 & echo started"], 90)
            assert names_left(os.getpid()) != []
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        use()
    assert names_left(os.getpid()) == []
