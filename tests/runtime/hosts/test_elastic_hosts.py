"""An elastic training on workers that other hosts keep, one of which is cut off."""

import os
import socket
from pathlib import Path

import pytest

from drlpp import Elastic
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.io.run_folder import CHANGES_NAME
from drlpp.models.model_reference import ModelReference
from drlpp.runtime import PipelineTrainer, ProgressReport, TrainerCallbacks
from drlpp.runtime.training.changes_file import read_changes
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.counting import counting, counts, every_sample
from tests.support.programs.launched import launched
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.of(counting))


@pytest.mark.system
def test_a_host_that_is_cut_off_costs_no_sample(captured: CapturedModel, tmp_path: Path) -> None:
    one = OptimizerSpec(name="sgd", options={"lr": 1.0, "momentum": 0.0})
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2), Method(policy="stash"), one)
    cut: list[int] = []

    def cut_off(report: ProgressReport) -> None:
        if not cut:
            _, connection = controller.host_agents()[1]
            with socket.socket(fileno=os.dup(connection.fileno())) as peer:
                peer.shutdown(socket.SHUT_RDWR)
            cut.append(report.done)

    with launched([0, 1, 2]) as controller:
        trainer = PipelineTrainer(
            document,
            model=captured,
            elastic=Elastic(1, 3),
            out=tmp_path,
            observer=TrainerCallbacks(on_progress=cut_off, on_note=lambda note: None),
        )
        # Long enough for a report of progress.
        result = trainer.fit(every_sample(), epochs=20)
    assert counts(result.state_dict) == {(f"layers.{layer}.weight", 20.0) for layer in range(4)}
    assert cut
    (lost,) = read_changes(tmp_path / CHANGES_NAME)
    assert (lost.given_up, lost.workers, lost.configuration) == ((2,), (0, 1), "1-1")
    assert "cannot be reached" in lost.reason
