import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import ControlGroups, EmulatedCluster
from benchmarks.emulated_cluster.names import in_use, name_in, new_name
from drlpp.errors import InvalidCluster, InvalidInput
from drlpp.io.documents import read_document
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.programs.emulated_clusters import (
    ALL_REDUCE,
    FAST,
    SLOW,
    names_left,
    needs_kernel,
    two_hosts,
)

CLUSTERS = Path(__file__).parents[3] / "benchmarks" / "clusters"


def busy(seconds: float) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import time\nend = time.time() + {seconds}\nwhile time.time() < end: pass",
        ]
    )


def processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# What is refused


def test_speeds_beyond_nine_tenths_of_the_cores_are_refused() -> None:
    cores = len(os.sched_getaffinity(0))
    EmulatedCluster(two_hosts(accelerators=cores, speed=0.45))
    with pytest.raises(InvalidCluster, match=rf"add up to {cores:g} cores, .* multiply .* by 0\.9"):
        EmulatedCluster(two_hosts(accelerators=cores, speed=0.5))


def test_the_factor_to_multiply_speeds_by_is_no_zero() -> None:
    cores = len(os.sched_getaffinity(0))
    with pytest.raises(InvalidCluster, match=r"multiply every speed by 0\.00") as told:
        EmulatedCluster(two_hosts(accelerators=50 * cores, speed=1))
    factor = float(str(told.value).rpartition(" ")[2])
    EmulatedCluster(two_hosts(accelerators=50 * cores, speed=factor))


def test_an_accelerator_is_at_most_a_core() -> None:
    for speed in (1.2, 0.0001):
        with pytest.raises(InvalidCluster, match=r"at least 0\.001 and at most 1"):
            EmulatedCluster(two_hosts(accelerators=1, speed=speed))


def test_lines_of_a_host_that_are_apart_are_refused() -> None:
    hosts = tuple(Host(name=name, accelerators=1, speed=0.1) for name in ("a", "b", "a"))
    with pytest.raises(InvalidCluster, match="lines of host 'a' are apart"):
        EmulatedCluster(Cluster(hosts=hosts, within_host=FAST, between_hosts=SLOW))


@pytest.mark.parametrize("path", sorted(CLUSTERS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_for_two_cores(path: Path) -> None:
    cluster = read_document(path, Cluster)
    assert sum(cluster.speeds) <= 0.9 * 2 + 1e-9
    assert len(cluster.host_names) > 1


# Names


def test_a_name_says_who_built_the_cluster() -> None:
    name = new_name()
    assert name != new_name()
    assert name_in(f"{name}-host-0 (id: 3)") == name
    assert name_in("another") is None
    assert in_use(name)
    assert not in_use("drlpp-4194304999-abcdef")


# Without root


@pytest.mark.system
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="1.6 cores are needed")
def test_dilated_hosts_need_no_root_and_do_not_meet_others() -> None:
    """Two clusters at once share their addresses, but do not meet."""
    pair = two_hosts(accelerators=1)
    with (
        EmulatedCluster(two_hosts(), dilated=True) as four,
        EmulatedCluster(pair, dilated=True) as two,
    ):
        assert "time dilation" in four.description
        jobs = [
            emulated.start_ranks([sys.executable, "-c", ALL_REDUCE]) for emulated in (four, two)
        ]
        printed = [job.wait(90) for job in jobs]
        with pytest.raises(InvalidInput, match="no links"):
            four.cut("host-0")
    places = [[row for row in json.loads(text.splitlines()[-1]) if row[0]] for text in printed]
    assert places == [[[1, 0], [2, 0], [3, 1], [4, 1]], [[1, 0], [2, 1]]]
    assert names_left(os.getpid()) == []


def test_a_dilated_cluster_has_no_links_to_cut() -> None:
    with EmulatedCluster(two_hosts(accelerators=1), dilated=True) as emulated:
        assert (
            emulated.run_ranks(["sh", "-c", "echo of host $GROUP_RANK"], timeout=90)
            == "of host 0\n"
        )
        with pytest.raises(InvalidInput, match="no links"):
            emulated.cut("host-0")
    assert names_left(os.getpid()) == []


# Accelerators


@needs_kernel
@pytest.mark.slow
def test_without_quotas_there_are_hosts_and_links_alone() -> None:
    """Every rank says whether it is in a control group of the cluster, and in which network."""
    script = (
        "import os, pathlib, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "found = [None] * dist.get_world_size()\n"
        "held = 'accelerator-' in pathlib.Path('/proc/self/cgroup').read_text()\n"
        "dist.all_gather_object(found, (held, os.stat('/proc/self/ns/net').st_ino))\n"
        "print(len(found), any(held for held, _ in found), len({net for _, net in found}))\n"
        "dist.destroy_process_group()\n"
    )
    printed = {}
    for quotas in (True, False):
        with EmulatedCluster(two_hosts(), quotas=quotas) as emulated:
            assert ("time dilation" in emulated.description) is not quotas
            assert "between hosts: 10000 Mbit/s" in emulated.description
            printed[quotas] = emulated.run_ranks([sys.executable, "-c", script], timeout=90)
            if not quotas:
                with pytest.raises(InvalidInput, match="without quotas"):
                    emulated.process_ids("host-0")
    assert [printed[quotas].splitlines()[-1] for quotas in (True, False)] == [
        "4 True 2",
        "4 False 2",
    ]


@needs_kernel
@pytest.mark.slow
def test_quotas_hold() -> None:
    quotas = [0.2, 0.1]
    processes = [busy(20), busy(20)]
    groups = ControlGroups(quotas)
    try:
        groups.hold([process.pid for process in processes])
        before = [processor_seconds(process.pid) for process in processes]
        begin = time.monotonic()
        time.sleep(4)
        seconds = time.monotonic() - begin
        after = [processor_seconds(process.pid) for process in processes]
        assert [process.poll() for process in processes] == [None, None]
    finally:
        groups.remove()
        for process in processes:
            process.kill()
            process.wait()
    shares = [(b - a) / seconds for a, b in zip(before, after, strict=True)]
    # The clock of /proc ticks every 10 ms.
    assert shares == pytest.approx(quotas, rel=0.05, abs=0.005)
    assert names_left(os.getpid()) == []


# Links


# Every rank but the first sends to the first: its bytes a second, and the seconds of a byte.
SEND = """
import json, os, socket, sys, time
address, rank = sys.argv[1], int(os.environ["RANK"])
if rank == 0:
    with socket.create_server((address, 7777)) as server:
        for _ in range(int(os.environ["WORLD_SIZE"]) - 1):
            with server.accept()[0] as peer:
                size = int.from_bytes(peer.recv(8, socket.MSG_WAITALL), "little")
                for _ in range(20):
                    peer.sendall(peer.recv(1))
                while size > 0:
                    size -= len(peer.recv(1 << 20))
                peer.sendall(b"x")
                print(peer.recv(1000).decode(), flush=True)
else:
    time.sleep(4 * rank)
    with socket.create_connection((address, 7777)) as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        size = 6_000_000
        peer.sendall(size.to_bytes(8, "little"))
        trips = []
        for _ in range(20):
            begin = time.perf_counter()
            peer.sendall(b"x")
            peer.recv(1)
            trips.append((time.perf_counter() - begin) / 2)
        begin = time.perf_counter()
        peer.sendall(bytes(size))
        peer.recv(1)
        found = [rank, size / (time.perf_counter() - begin), sorted(trips)[10]]
        peer.sendall(json.dumps(found).encode())
"""


@needs_kernel
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_links_are_as_asked() -> None:
    def link(megabits: float, milliseconds: float) -> Link:
        return Link(
            bandwidth_bytes_per_second=megabits / 8 * 1e6, latency_seconds=milliseconds / 1e3
        )

    cluster = Cluster(
        hosts=(
            Host(name="a", accelerators=1, speed=0.4, rack="one"),
            Host(name="b", accelerators=1, speed=0.4, rack="one", network=link(50, 2)),
            Host(name="c", accelerators=1, speed=0.4, rack="two"),
        ),
        within_host=link(2000, 0),
        between_hosts=link(200, 1),
        between_racks=link(100, 3),
    )
    with EmulatedCluster(cluster) as emulated:
        address = emulated.addresses[0]
        printed = emulated.run_ranks([sys.executable, "-c", SEND, address], timeout=90)
    found = {rank: (sent, delay) for rank, sent, delay in map(json.loads, printed.splitlines())}
    for rank, (megabits, milliseconds) in {1: (50, 2), 2: (100, 3)}.items():
        sent, delay = found[rank]
        assert 0.6 < sent * 8e-6 / megabits < 1.1, (rank, sent)
        # A process delays between hosts at least; waiting for the processor comes on top.
        assert milliseconds / 1e3 < delay < 1.5 * milliseconds / 1e3 + 4e-3, (rank, delay)
