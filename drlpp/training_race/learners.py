"""What trains in a race: a pipeline on the workers, with what ``drlpp train`` trains with."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.runtime.session.session import ClusterSession
from drlpp.runtime.training.data.training_data import TrainingData
from drlpp.runtime.training.trainer import Trainer
from drlpp.runtime.training.training_plan import TrainingPlan
from drlpp.runtime.training.training_reports import Stint, TrainerCallbacks
from drlpp.specs.optimizer_spec import OptimizerSpec


class Learner(Protocol):
    """One training, which pauses for evaluations and while it is another's turn."""

    @property
    def together(self) -> int:
        """Minibatches after which it may pause."""

    def train_until(self, minibatches: int) -> Stint:
        """Train until so many minibatches are done in all, keep a checkpoint, and evaluate.

        Raises:
            RunFailure: it cannot go further.
        """


class PipelineLearner:
    """Trains a candidate on a session's workers, as ``drlpp train`` does.

    Args:
        session: the workers.
        plan: placement and method.
        data: to train and evaluate on.
        folder: of the checkpoint.
        optimizer: with the learning rate.
    """

    def __init__(
        self,
        session: ClusterSession,
        plan: ExecutionPlan,
        data: TrainingData,
        folder: Path,
        optimizer: OptimizerSpec,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._plan = plan
        endless = TrainingPlan(epochs=1)
        self._trainer = Trainer(session, data, folder, endless, TrainerCallbacks(), optimizer)

    @property
    def together(self) -> int:
        """Minibatches after which all stages have made whole updates."""
        return self._plan.method.minibatches_together(self._plan.pipeline)

    def train_until(self, minibatches: int) -> Stint:
        """Train on, with what is in flight; the pipeline is not emptied for a pause."""
        return self._trainer.train_until(self._plan, minibatches)
