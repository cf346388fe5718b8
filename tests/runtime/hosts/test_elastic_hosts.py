"""An elastic training on workers that hosts of a Ray cluster keep, one of which is lost."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from drlpp import Elastic
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import EpochReport, PipelineTrainer, TrainerCallbacks
from drlpp.runtime.training.changes_file import read_changes
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.counting import counting, counts, every_sample
from tests.support.programs.ray_clusters import PATIENT, RayCluster, ray_cluster
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(counting))


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    with ray_cluster((2, 1)) as cluster:
        yield cluster


@pytest.mark.system
def test_a_host_that_is_lost_costs_no_sample(
    captured: CapturedModel, cluster: RayCluster, tmp_path: Path
) -> None:
    one = OptimizerSpec(name="sgd", options={"lr": 1.0, "momentum": 0.0})
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2), Method(policy="stash"), one)

    def lose(report: EpochReport) -> None:
        if report.epoch == 2:
            os.kill(cluster.actor(1), signal.SIGKILL)

    trainer = PipelineTrainer(
        document,
        model=captured,
        elastic=Elastic(1, 3),
        cluster=cluster.address,
        time_limits=PATIENT,
        out=tmp_path,
        observer=TrainerCallbacks(on_epoch=lose, on_note=lambda note: None),
    )
    result = trainer.fit(every_sample(), epochs=6)
    assert counts(result.state_dict) == {(f"layers.{layer}.weight", 6.0) for layer in range(4)}
    (lost,) = read_changes(tmp_path / CHANGES_NAME)
    assert (lost.given_up, lost.workers, lost.configuration) == ((2,), (0, 1), "1-1")
    assert "cannot be reached" in lost.reason
