"""Jobs on emulated hosts: how they run, fail and end, and that they leave nothing."""

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

from benchmarks.emulated_cluster import EmulatedCluster
from drlpp.errors import InvalidCluster, InvalidInput, TrialTimeout, WorkerLost
from drlpp.specs.cluster import Link
from tests.support.programs.emulated_clusters import ALL_REDUCE, names_left, needs_kernel, two_hosts

CLUSTERS = Path(__file__).parents[3] / "benchmarks" / "clusters"

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


def command_line(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.emulated_cluster", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@needs_kernel
@pytest.mark.system
def test_torchrun_joins_two_hosts() -> None:
    with EmulatedCluster(two_hosts()) as emulated:
        printed = emulated.run_ranks([sys.executable, "-c", ALL_REDUCE], timeout=90)
    rows = json.loads(printed.splitlines()[-1])
    assert rows == [[1, 0], [2, 0], [3, 1], [4, 1]]
    assert names_left(os.getpid()) == []


@needs_kernel
@pytest.mark.system
def test_a_cut_host_is_reached_again(tmp_path: Path) -> None:
    file = tmp_path / "count"
    with EmulatedCluster(two_hosts(accelerators=1)) as emulated:
        emulated.start_ranks([sys.executable, "-c", PING, emulated.addresses[1], str(file)])
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
            emulated.run_ranks([sys.executable, "-c", program], timeout=90)
        with pytest.raises(TrialTimeout, match="not ended within 1 s"):
            emulated.run_ranks(["sleep", "1000"], timeout=1)
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
@pytest.mark.system
def test_an_exception_leaves_nothing() -> None:
    def fail() -> None:
        with EmulatedCluster(two_hosts(accelerators=1)) as emulated:
            # In a session of its own, and nobody's child when its parent has ended.
            job = emulated.start_ranks(["sh", "-c", "setsid sleep 1000 & echo started"])
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
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
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
    assert error.startswith("emulated_cluster: error: the command failed with exit code 1")
