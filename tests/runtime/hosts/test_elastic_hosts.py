"""An elastic training on workers that hosts of a Ray cluster keep, one of which is lost."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks.emulated_cluster.ray_hosts import workers_by_name
from drlpp import Elastic
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import EpochReport, PipelineTrainer, TrainerCallbacks
from drlpp.runtime.hosts.ray_host import RayHost
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.counting import counting, counts, every_sample
from tests.support.programs.ray_clusters import PATIENT, RayCluster, descendants, ray_cluster
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of
from tests.support.training.strikes import Strikes, changes_in


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(counting))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster((2, 1)) as cluster:
        yield cluster


ONE = OptimizerSpec(name="sgd", options={"lr": 1.0, "momentum": 0.0})


@pytest.mark.system
def test_copies_that_another_host_keeps_outlive_its_worker(
    captured: CapturedModel, cluster: RayCluster, tmp_path: Path
) -> None:
    """They are fetched from its actor, and what was in flight there continues."""
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2), Method(policy="stash"), ONE)

    def kill() -> None:
        theirs = descendants(cluster.actor(1))
        (worker,) = [process for process, _ in workers_by_name() if process in theirs]
        os.kill(worker, signal.SIGKILL)

    strikes = Strikes(tmp_path, kill)
    with strikes.following_checkpoints():
        trainer = PipelineTrainer(
            document,
            model=captured,
            elastic=Elastic(1, 3),
            copy_every=4,
            cluster=cluster.address,
            time_limits=PATIENT,
            out=tmp_path,
            observer=strikes.observer,
        )
        result = trainer.fit(every_sample(), epochs=2)
    assert counts(result.state_dict) == {(f"layers.{layer}.weight", 2.0) for layer in range(4)}
    (change,) = changes_in(tmp_path)
    assert (change.source, change.configuration) == ("copies on the hosts", "1-1-1")
    assert change.epochs == 0
    assert change.minibatches % 4 == 0


@pytest.mark.system
def test_hosts_that_are_lost_and_found_again_cost_no_sample(
    captured: CapturedModel,
    cluster: RayCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its node is started again; only its actor ended; another node takes its place."""
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2), Method(policy="stash"), ONE)
    look = RayHost.has_returned

    def look_until_it_has(host: RayHost, worker: int) -> bool:
        if not look(host, worker) and host._again is not None:
            host._again.result(120)
        return look(host, worker)

    monkeypatch.setattr(RayHost, "has_returned", look_until_it_has)
    strikes: dict[int, Callable[[], None]] = {
        2: lambda: os.kill(cluster.process(1, "/raylet"), signal.SIGKILL),
        4: lambda: os.kill(cluster.actor(1), signal.SIGKILL),
        6: lambda: os.kill(cluster.process(1, "/raylet"), signal.SIGKILL),
        # It would fail if the last node had no actor.
        8: lambda: print(cluster.actor(2)),
    }
    helps = iter([lambda: cluster.restart(1), lambda: None, lambda: cluster.join(4)])

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
    result = trainer.fit(every_sample(), epochs=9)
    assert counts(result.state_dict) == {(f"layers.{layer}.weight", 9.0) for layer in range(4)}
    changes = changes_in(tmp_path)
    assert [(one.given_up, one.returned, one.configuration) for one in changes] == [
        ((2,), (), "1-1"),
        ((), (2,), "1-1-1"),
    ] * 3
    assert [one.epochs for one in changes] == [2, 3, 4, 5, 6, 7]
