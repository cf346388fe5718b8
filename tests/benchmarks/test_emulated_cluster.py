import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import EmulatedCluster, control_groups
from benchmarks.emulated_cluster.names import in_use, name_in, new_name
from benchmarks.emulated_cluster.self_check import check, kinds_of_ways
from drlpp.errors import InvalidCluster, InvalidInput, TrialTimeout, WorkerLost
from drlpp.io.documents import read_document
from drlpp.specs.cluster import Cluster, Host, Link
from tests.support.emulated_clusters import FAST, SLOW, names_left, needs_kernel, two_hosts

CLUSTERS = Path(__file__).parents[2] / "benchmarks" / "clusters"

ALL_REDUCE = """
import hashlib, os, torch, torch.distributed as dist
dist.init_process_group("gloo")
values = torch.zeros(4, 3)
token = hashlib.sha256(os.environ["DRLPP_TOKEN"].encode()).digest()[0]
row = [dist.get_rank() + 1, int(os.environ["GROUP_RANK"]), token]
values[dist.get_rank()] = torch.tensor(row, dtype=torch.float32)
dist.all_reduce(values)
print(values.int().tolist())
dist.destroy_process_group()
"""

# Rank 1 answers every byte of rank 0, which counts in a file.
PING = """
import os, socket, sys, time
address, file = sys.argv[1:]
if os.environ["RANK"] == "1":
    with socket.create_server((address, 7777)) as server, server.accept()[0] as peer:
        while data := peer.recv(1):
            peer.sendall(data)
else:
    while True:
        try:
            peer = socket.create_connection((address, 7777))
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
    while True:
        peer.sendall(b"x")
        peer.recv(1)
        with open(file, "a") as counted:
            counted.write("x")
        time.sleep(0.02)
"""


@contextmanager
def counting(path: Path) -> Iterator[None]:
    """Wait until a file has become longer, before and after the block."""

    def wait_for_more() -> None:
        size = path.stat().st_size if path.exists() else 0
        end = time.monotonic() + 60
        while not path.exists() or path.stat().st_size <= size:
            assert time.monotonic() < end, "no byte came through"
            time.sleep(0.02)

    wait_for_more()
    yield
    wait_for_more()


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


def command_line(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.emulated_cluster", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


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
        jobs = [emulated.start([sys.executable, "-c", ALL_REDUCE]) for emulated in (four, two)]
        printed = [job.wait(90) for job in jobs]
        with pytest.raises(InvalidInput, match="no links"):
            four.cut("host-0")
    places, tokens = [], []
    for text in printed:
        rows = [row for row in json.loads(text.splitlines()[-1]) if row[0]]
        places.append([row[:2] for row in rows])
        tokens.append({row[2] for row in rows})
    assert places == [[[1, 0], [2, 0], [3, 1], [4, 1]], [[1, 0], [2, 1]]]
    assert [len(token) for token in tokens] == [1, 1]
    assert names_left(os.getpid()) == []


def test_a_dilated_cluster_has_no_links_to_cut() -> None:
    with EmulatedCluster(two_hosts(accelerators=1), dilated=True) as emulated:
        assert emulated.run(["sh", "-c", "echo of host $GROUP_RANK"], timeout=90) == "of host 0\n"
        with pytest.raises(InvalidInput, match="no links"):
            emulated.cut("host-0")
    assert names_left(os.getpid()) == []


# Accelerators


@needs_kernel
@pytest.mark.slow
def test_quotas_hold() -> None:
    quotas = [0.2, 0.1]
    processes = [busy(20), busy(20)]
    try:
        with control_groups(quotas) as groups:
            groups.hold([process.pid for process in processes])
            before = [processor_seconds(process.pid) for process in processes]
            begin = time.monotonic()
            time.sleep(4)
            seconds = time.monotonic() - begin
            after = [processor_seconds(process.pid) for process in processes]
            assert [process.poll() for process in processes] == [None, None]
        shares = [(b - a) / seconds for a, b in zip(before, after, strict=True)]
        # The clock of /proc ticks every 10 ms.
        assert shares == pytest.approx(quotas, rel=0.05, abs=0.005)
        assert names_left(os.getpid()) == []
    finally:
        for process in processes:
            process.kill()
            process.wait()


# Links


def test_every_kind_of_way_is_checked_once() -> None:
    slow = Host(name="slow", accelerators=1, speed=0.1, network=SLOW)
    cluster = two_hosts().with_hosts((*two_hosts().hosts, slow))
    assert kinds_of_ways(cluster) == [(0, 1), (0, 2), (0, 4), (4, 0)]


@needs_kernel
@pytest.mark.slow
@pytest.mark.timeout(240)
def test_links_and_speeds_are_as_asked() -> None:
    def link(megabits: float, microseconds: float) -> Link:
        return Link(
            bandwidth_bytes_per_second=megabits / 8 * 1e6, latency_seconds=microseconds / 1e6
        )

    cluster = Cluster(
        hosts=(
            Host(name="a", accelerators=2, speed=0.4, rack="one"),
            Host(name="b", accelerators=1, speed=0.2, rack="one", network=link(50, 2000)),
            Host(name="c", accelerators=1, speed=0.4, rack="two"),
        ),
        within_host=link(2000, 0),
        between_hosts=link(200, 1000),
        between_racks=link(100, 3000),
    )
    with EmulatedCluster(cluster) as emulated:
        checked = check(emulated)
    ways = {(found.sender, found.receiver): found for found in checked.links}
    assert {way: found.asked.bandwidth_bytes_per_second * 8e-6 for way, found in ways.items()} == {
        (0, 1): 2000,
        (0, 2): 50,
        (2, 0): 50,
        (0, 3): 100,
        (2, 3): 50,
        (3, 2): 50,
    }
    # Between racks the delay of a host's own network is added.
    milliseconds = {(0, 2): 2, (2, 0): 2, (0, 3): 3, (2, 3): 4, (3, 2): 4}
    for way, found in ways.items():
        assert 0.7 < found.bandwidth_ratio < 1.1, found
        assert found.delayed == (way in milliseconds), "a process delays between hosts at least"
        if found.delayed:
            delay = milliseconds[way] / 1000
            # Waiting for the processor comes on top.
            assert delay < found.latency_seconds < 1.5 * delay + 4e-3, found
    for speed in checked.speeds:
        assert speed.ratio == pytest.approx(1, abs=0.2), speed


# Running and ending


@needs_kernel
@pytest.mark.system
def test_torchrun_joins_two_hosts() -> None:
    with EmulatedCluster(two_hosts()) as emulated:
        printed = emulated.run([sys.executable, "-c", ALL_REDUCE], timeout=90)
    rows = json.loads(printed.splitlines()[-1])
    assert [row[:2] for row in rows] == [[1, 0], [2, 0], [3, 1], [4, 1]]
    assert len({row[2] for row in rows}) == 1
    assert names_left(os.getpid()) == []


@needs_kernel
@pytest.mark.system
def test_a_cut_host_is_reached_again(tmp_path: Path) -> None:
    file = tmp_path / "count"
    with EmulatedCluster(two_hosts(accelerators=1)) as emulated:
        assert os.environ.get("DRLPP_TOKEN") is None
        emulated.start([sys.executable, "-c", PING, emulated.addresses[1], str(file)])
        with counting(file):
            emulated.cut("host-1")
            # What was on its way may still arrive.
            time.sleep(0.3)
            size = file.stat().st_size
            time.sleep(1)
            assert file.stat().st_size == size
            emulated.restore("host-1")
        assert len(emulated.process_ids("host-1")) == 1
        with pytest.raises(InvalidInput, match="no host 'other'"):
            emulated.cut("other")
    assert names_left(os.getpid()) == []


@needs_kernel
@pytest.mark.system
def test_a_failed_command_says_who_and_why() -> None:
    program = "import os\nif os.environ['RANK'] == '1': raise ValueError('lost my way')\n"
    with EmulatedCluster(two_hosts(accelerators=1)) as emulated:
        with pytest.raises(
            WorkerLost, match="rank 1 on host-1 ended with: ValueError: lost my way"
        ):
            emulated.run([sys.executable, "-c", program], timeout=90)
        with pytest.raises(TrialTimeout, match="not ended within 1 s"):
            emulated.run(["sleep", "1000"], timeout=1)
    assert names_left(os.getpid()) == []


@needs_kernel
@pytest.mark.system
def test_the_reason_is_told_and_not_who_ended_first() -> None:
    """As the processes that keep workers do: without a word, when the first one has failed."""
    program = (
        "import os, time\n"
        "if os.environ['RANK'] == '0':\n"
        "    time.sleep(2)\n"
        "    raise SystemExit('no such file')\n"
        "raise SystemExit(2)\n"
    )
    # Names that the files of a run could be mistaken for.
    cluster = two_hosts(accelerators=1)
    cluster = cluster.with_hosts(cluster.hosts[0].model_copy(update={"name": "rank"}) for _ in "a")
    with (
        EmulatedCluster(cluster) as emulated,
        pytest.raises(WorkerLost, match="rank 0 on rank-0 ended with: no such file"),
    ):
        emulated.run([sys.executable, "-c", program], timeout=90)
    assert names_left(os.getpid()) == []


@needs_kernel
def test_a_link_too_slow_for_any_message_is_refused() -> None:
    slow = Link(bandwidth_bytes_per_second=0.01)
    with (
        pytest.raises(InvalidCluster, match=r"a link of 0\.01 bytes per second cannot be emulated"),
        EmulatedCluster(two_hosts(slow, accelerators=1)),
    ):
        pass
    assert names_left(os.getpid()) == []


@needs_kernel
def test_two_clusters_are_strangers() -> None:
    with EmulatedCluster(two_hosts(speed=0.1)) as one, EmulatedCluster(two_hosts(speed=0.1)):
        one.cut("host-0")
    assert names_left(os.getpid()) == []


@needs_kernel
@pytest.mark.system
def test_an_exception_leaves_nothing() -> None:
    def fail() -> None:
        with EmulatedCluster(two_hosts(accelerators=1)) as emulated:
            # In a session of its own, and nobody's child when its parent has ended.
            job = emulated.start(["sh", "-c", "setsid sleep 1000 & echo started"])
            end = time.monotonic() + 60
            while "started" not in job.output:
                assert time.monotonic() < end
                time.sleep(0.05)
            assert names_left(os.getpid()) != []
            raise RuntimeError("something else")

    with pytest.raises(RuntimeError, match="something else"):
        fail()
    assert names_left(os.getpid()) == []


@needs_kernel
@pytest.mark.system
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_signals_leave_nothing(number: signal.Signals) -> None:
    program = command_line(
        "run", CLUSTERS / "two-hosts.yaml", "--", "sh", "-c", "echo started; sleep 1000"
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "started\n"
        assert names_left(program.pid) != []
        program.send_signal(number)
        assert program.wait(30) == 128 + number
        assert names_left(program.pid) == []
    finally:
        program.kill()
        program.communicate()


@needs_kernel
@pytest.mark.system
def test_what_a_kill_leaves_is_cleaned_up() -> None:
    program = command_line(
        "run", CLUSTERS / "unequal-hosts.yaml", "--", "sh", "-c", "echo started; sleep 1000"
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "started\n"
    finally:
        program.kill()
        program.communicate()
    left = names_left(program.pid)
    assert left != []
    cleaning = command_line("clean")
    printed, _ = cleaning.communicate(timeout=60)
    assert cleaning.returncode == 0
    assert f"removed {left[0]}\n" in printed
    assert names_left(program.pid) == []


@needs_kernel
@pytest.mark.system
def test_what_is_used_is_printed_and_errors_are_one_line() -> None:
    program = command_line("run", CLUSTERS / "unequal-hosts.yaml", "--", "false")
    _, errors = program.communicate(timeout=90)
    assert program.returncode == 1
    *used, error = errors.splitlines()
    assert "control groups" in used[0]
    assert "network namespaces fast 10.77.0.100, slow 10.77.0.101" in used[1]
    assert "network of slow: 200 Mbit/s" in used[-1]
    assert error.startswith("emulated_cluster: error: the command failed: rank ")
