"""A session on a Ray cluster of emulated hosts: two with two accelerators each, 100 Mbit/s between.

The quotas make every accelerator 0.4 of a core; the link is a hundred times slower than that within
a host.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.emulated_cluster import EmulatedCluster
from drlpp.errors import WorkerLost
from drlpp.io.documents import read_document
from drlpp.specs.cluster import Cluster
from tests.support.programs.emulated_clusters import SLOW, names_left, needs_kernel, two_hosts

pytestmark = [needs_kernel, pytest.mark.system, pytest.mark.timeout(400)]

CLUSTER = two_hosts(SLOW)
LOST_WITHIN_SECONDS = 120
"""A host is lost when it has been silent for 12 s; then everyone has to end."""


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)


def test_the_link_is_measured_a_short_cut_survived_and_a_longer_one_ends_the_run_with_a_reason(
    tmp_path: Path,
) -> None:
    with EmulatedCluster(CLUSTER) as emulated:
        program = "tests.support.programs.many_hosts_programs"
        job = emulated.start([sys.executable, "-m", program, str(tmp_path)])
        wait_until(lambda: progress_of(tmp_path) > 1, 300, "training has begun")
        check_measured(read_document(tmp_path / "cluster.json", Cluster))
        emulated.cut("host-1")
        try:
            time.sleep(1)
            before = progress_of(tmp_path)
            time.sleep(3)
            assert progress_of(tmp_path) <= before + 1, "nothing gets through"
            emulated.restore("host-1")
            wait_until(lambda: progress_of(tmp_path) > before + 3, 60, "training goes on")
            emulated.cut("host-1")
            with pytest.raises(WorkerLost, match="host"):
                job.wait(LOST_WITHIN_SECONDS)
            assert "host host-1 cannot be reached: no sign of life for 12 s" in job.output
            for host in CLUSTER.host_names:
                wait_until(
                    lambda host=host: not emulated.process_ids(host),  # type: ignore[misc]
                    LOST_WITHIN_SECONDS,
                    f"the processes of {host} have ended",
                )
        finally:
            emulated.restore("host-1")
    assert names_left(os.getpid()) == []


def check_measured(measured: Cluster) -> None:
    assert measured.host_of == CLUSTER.host_of
    assert measured.between_hosts is not None
    # A busy machine takes its time between the packets.
    wanted = SLOW.bandwidth_bytes_per_second
    assert 0.5 < measured.between_hosts.bandwidth_bytes_per_second / wanted < 1.15
    assert measured.within_host.bandwidth_bytes_per_second > 4 * wanted


def progress_of(folder: Path) -> int:
    path = folder / "progress"
    return path.stat().st_size if path.exists() else 0
