"""An elastic training on workers that hosts of a Ray cluster keep, one of which is lost."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement_file import PlacementFile
from drlpp.planners.replanning import Elastic
from drlpp.runtime import (
    ClusterSession,
    EpochReport,
    PipelineTrainer,
    TrainerCallbacks,
)
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Host, Link
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.counting import counting, counts, every_sample
from tests.support.programs.ray_clusters import (
    PATIENT,
    RayCluster,
    look_until_it_has_returned,
    ray_cluster,
)
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of
from tests.support.training.strikes import changes_in

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(counting))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster((2, 1)) as cluster:
        yield cluster


ONE = OptimizerSpec(name="sgd", options={"lr": 1.0, "momentum": 0.0})
LINK = Link(bandwidth_bytes_per_second=1e9)


def _placed(captured: CapturedModel, *hosts: Host) -> PlacementFile:
    """A stage on every accelerator of these hosts."""
    cluster = Cluster(hosts=hosts, within_host=LINK, between_hosts=LINK)
    placement = in_a_row(captured.graph, *range(cluster.accelerators))
    document = file_of(captured, placement, Method(policy="stash"), ONE)
    return document.model_copy(update={"cluster": cluster})


def test_a_host_that_another_session_uses_is_missing_until_it_is_free(
    captured: CapturedModel,
    cluster: RayCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, second = (
        Host(name=name, accelerators=count)
        for name, count in zip(cluster.addresses, (2, 1), strict=True)
    )
    limits = replace(PATIENT, gathering_seconds=3)
    alone = Cluster(hosts=(second,), within_host=LINK)
    notes: list[str] = []
    other = ClusterSession(captured, 1, cluster=cluster.address, hosts=alone, time_limits=limits)
    look_until_it_has_returned(monkeypatch, lambda: other.worker_group._closed)

    def free(report: EpochReport) -> None:
        if report.epoch == 2:
            other.close()

    trainer = PipelineTrainer(
        _placed(captured, first, second),
        model=captured,
        elastic=Elastic(1, 3),
        cluster=cluster.address,
        time_limits=limits,
        out=tmp_path,
        observer=TrainerCallbacks(on_epoch=free, on_note=notes.append),
    )
    with other:
        result = trainer.fit(every_sample(), epochs=4)
    assert counts(result.state_dict) == {(f"layers.{layer}.weight", 4.0) for layer in range(4)}
    assert notes[0].startswith(
        f"host {second.name} is missing or in use: training begins with 2 of 3"
    )
    (change,) = changes_in(tmp_path)
    assert (change.returned, change.configuration) == ((2,), "1-1-1")


def test_hosts_that_are_lost_and_found_again_cost_no_sample(
    captured: CapturedModel,
    cluster: RayCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Only its actor ended, and it is there again; another node takes the place of its node.

    The last test, since it leaves other nodes behind.
    """
    document = _placed(captured, Host(name="large", accelerators=2), Host(name="b", accelerators=1))
    look_until_it_has_returned(monkeypatch)
    strikes: dict[int, Callable[[], None]] = {
        2: lambda: os.kill(cluster.actor(1), signal.SIGKILL),
        4: lambda: os.kill(cluster.process(1, "/raylet"), signal.SIGKILL),
        # It would fail if the last node had no actor.
        6: lambda: print(cluster.actor(2)),
    }
    helps = iter([lambda: None, lambda: cluster.join(4)])

    def strike(report: EpochReport) -> None:
        strikes.get(report.epoch, lambda: None)()

    def help_(note: str) -> None:
        if "cannot be reached" in note:
            next(helps)()

    trainer = PipelineTrainer(
        document,
        model=captured,
        elastic=Elastic(1, 3),
        cluster=cluster.address,
        time_limits=PATIENT,
        out=tmp_path,
        observer=TrainerCallbacks(on_epoch=strike, on_note=help_),
    )
    result = trainer.fit(every_sample(), epochs=7)
    assert counts(result.state_dict) == {(f"layers.{layer}.weight", 7.0) for layer in range(4)}
    changes = changes_in(tmp_path)
    assert [(one.given_up, one.returned, one.configuration) for one in changes] == [
        ((2,), (), "1-1"),
        ((), (2,), "1-1-1"),
    ] * 2
    assert [one.epochs for one in changes] == [2, 3, 4, 5]
