"""Trainings of a model that counts its samples, on hosts that can be lost."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from drlpp.capturing.capture import CapturedModel
from drlpp.planners.replanning import Elastic
from drlpp.runtime import PipelineTrainer, TrainingResult
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.losable_hosts import LosableHosts
from tests.support.models.counting import counts, every_sample
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import file_of
from tests.support.training.strikes import Strikes

ONE = OptimizerSpec(name="sgd", options={"lr": 1.0, "momentum": 0.0})
EPOCHS = 2
DOWN_TO_ONE = Elastic(1, 4)
IN_A_ROW = (0, 1, 2, 3)
METHODS = {
    "stash": Method(policy="stash"),
    "flushed": Method(schedule="1f1b-flush", policy="sync", microbatches=1),
}


def fit(
    captured: CapturedModel,
    hosts: LosableHosts,
    strikes: Strikes,
    folder: Path,
    *,
    method: Method = METHODS["stash"],
    elastic: Elastic = DOWN_TO_ONE,
    stages: Sequence[int] = IN_A_ROW,
    checkpoint_every: int = 10,
    **options: Any,
) -> TrainingResult:
    """Train some epochs of every sample, while something strikes."""
    document = file_of(captured, in_a_row(captured.graph, *stages), method, ONE)
    with hosts.used(), strikes.following_checkpoints():
        trainer = PipelineTrainer(
            document,
            model=captured,
            elastic=elastic,
            checkpoint_every=checkpoint_every,
            out=folder,
            observer=strikes.observer,
            **options,
        )
        return trainer.fit(every_sample(), epochs=EPOCHS)


def assert_each_sample_once_an_epoch(result: TrainingResult) -> None:
    """Fails if anything was lost, or came twice."""
    found = counts(result.state_dict)
    assert found == {(f"layers.{layer}.weight", float(EPOCHS)) for layer in range(4)}
