"""A session on a Ray cluster of emulated hosts: two with two accelerators each, 100 Mbit/s between.

The quotas make every accelerator 0.4 of a core; the link is a hundred times slower than that within
a host.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.emulated_cluster import EmulatedCluster
from drlpp.capturing.capture import capture
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import WorkerLost
from drlpp.io.documents import read_document
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.planners import PlanningProblem, exact
from drlpp.runtime import Minibatches, run_reference
from drlpp.simulator import simulate
from drlpp.specs.cluster import Cluster
from tests.support.models.forked import largest_difference, order, placements, samples
from tests.support.programs.emulated_clusters import SLOW, names_left, needs_kernel, two_hosts
from tests.support.programs.many_hosts_programs import (
    METHOD,
    MINIBATCHES,
    OPTIMIZER,
    SHAPES,
    wide_placements,
)

pytestmark = [needs_kernel, pytest.mark.system, pytest.mark.timeout(400)]

CLUSTER = two_hosts(SLOW)
LOST_WITHIN_SECONDS = 120
"""A host is lost when it has been silent for 15 s; then everyone has to end."""


@dataclass(frozen=True)
class Measured:
    """What the program of many_hosts_programs.py has written."""

    weights: dict[str, dict[str, Tensor]]
    profile: Profile
    cluster: Cluster
    hosts: list[str]
    seconds: dict[str, list[float]]


@pytest.fixture(scope="module")
def emulated() -> Iterator[EmulatedCluster]:
    with EmulatedCluster(CLUSTER) as emulated:
        yield emulated
    assert names_left(os.getpid()) == []


@pytest.fixture(scope="module")
def measured(emulated: EmulatedCluster, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = tmp_path_factory.mktemp("measured")
    emulated.run(program("measure", folder), timeout=300)
    found = json.loads((folder / "measured.json").read_text())
    return Measured(
        weights={shape: torch.load(folder / f"{shape}.pt", weights_only=True) for shape in SHAPES},
        profile=read_document(folder / "profile.json", Profile),
        cluster=read_document(folder / "cluster.json", Cluster),
        hosts=found["hosts"],
        seconds=found["seconds"],
    )


def program(name: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.support.programs.many_hosts_programs", name, str(folder)]


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds} s"
        time.sleep(0.1)


@pytest.mark.parametrize("shape", SHAPES)
def test_hosts_train_to_the_references_weights(measured: Measured, shape: str) -> None:
    assert measured.hosts[0] == measured.hosts[1] != measured.hosts[2] == measured.hosts[3]
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    expected = run_reference(
        captured,
        placements(captured)[shape],
        Minibatches(*samples(), order(MINIBATCHES)),
        MINIBATCHES,
        method=METHOD,
        optimizer=OPTIMIZER,
    )
    assert largest_difference(measured.weights[shape], expected.state) < 1e-9


def test_profile_knows_the_link_between_the_hosts(measured: Measured) -> None:
    assert measured.cluster.host_of == CLUSTER.host_of
    assert measured.cluster.between_hosts is not None
    # A busy machine takes its time between the packets.
    found = measured.cluster.between_hosts.bandwidth_bytes_per_second
    assert 0.5 < found / SLOW.bandwidth_bytes_per_second < 1.15
    assert (
        measured.cluster.within_host.bandwidth_bytes_per_second
        > 4 * SLOW.bandwidth_bytes_per_second
    )


def test_a_large_cut_on_the_link_costs_what_the_simulator_says(measured: Measured) -> None:
    """By ratios, which the speed of the machine is not in; another link would be far off."""
    workload = Workload.of(measured.profile, METHOD)
    found = wide_placements(measured.profile.graph)

    def simulated_ratio(cluster: Cluster) -> float:
        narrow, wide = (
            simulate(workload, cluster, found[name], METHOD).seconds_per_minibatch
            for name in ("narrow", "wide")
        )
        return wide / narrow

    ratio = min(measured.seconds["wide"]) / min(measured.seconds["narrow"])
    assert ratio > 2
    assert ratio == pytest.approx(simulated_ratio(CLUSTER), rel=0.4)
    for factor in (1 / 3, 3):
        link = SLOW.model_copy(
            update={"bandwidth_bytes_per_second": factor * SLOW.bandwidth_bytes_per_second}
        )
        assert ratio != pytest.approx(simulated_ratio(two_hosts(link)), rel=0.4)


def test_the_planner_avoids_the_link_that_was_measured(measured: Measured) -> None:
    workload = Workload.of(measured.profile, METHOD)
    told = measured.cluster.with_speeds(CLUSTER.speeds)
    untold = Cluster(hosts=told.hosts, within_host=told.within_host, between_hosts=told.within_host)
    largest = {
        name: largest_message_between_hosts(
            measured.profile, exact(PlanningProblem(workload, cluster)).placement, cluster
        )
        for name, cluster in (("told", told), ("untold", untold))
    }
    assert largest["untold"] == 2**20
    assert largest["told"] == 2**15


def largest_message_between_hosts(profile: Profile, placement: Placement, cluster: Cluster) -> int:
    """Bytes of the largest tensor that an operator on one host makes for one on another."""
    hosts = {
        operator: {cluster.host_of[accelerator] for accelerator in stage.accelerators}
        for stage in placement.stages
        for operator in stage.operators
    }
    return max(
        profile.graph.operators[edge.source].outputs[output].bytes_
        for edge in profile.graph.edges
        for output in edge.outputs
        if len(hosts[edge.source] | hosts[edge.target]) > 1
    )


def test_a_short_cut_of_the_network_is_survived(emulated: EmulatedCluster, tmp_path: Path) -> None:
    job = emulated.start(program("train", tmp_path))
    wait_until(lambda: progress_of(tmp_path) > 1, 120, "training has begun")
    emulated.cut("host-1")
    time.sleep(1)
    before = progress_of(tmp_path)
    time.sleep(4)
    assert progress_of(tmp_path) <= before + 1, "nothing gets through"
    emulated.restore("host-1")
    wait_until(lambda: progress_of(tmp_path) > before + 3, 60, "training goes on")
    (tmp_path / "enough").touch()
    assert "trained enough" in job.wait(60)


@pytest.mark.slow
def test_a_lost_host_ends_the_run_with_a_reason(emulated: EmulatedCluster, tmp_path: Path) -> None:
    job = emulated.start(program("train", tmp_path))
    try:
        wait_until(lambda: progress_of(tmp_path) > 1, 120, "training has begun")
        emulated.cut("host-1")
        with pytest.raises(WorkerLost, match="host"):
            job.wait(LOST_WITHIN_SECONDS)
        assert "host host-1 cannot be reached: no sign of life for 15 s" in job.output
        for host in CLUSTER.host_names:
            wait_until(
                lambda host=host: not emulated.process_ids(host),  # type: ignore[misc]
                LOST_WITHIN_SECONDS,
                f"the processes of {host} have ended",
            )
    finally:
        emulated.restore("host-1")


def progress_of(folder: Path) -> int:
    path = folder / "progress"
    return path.stat().st_size if path.exists() else 0
