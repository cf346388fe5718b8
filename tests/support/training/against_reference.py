"""A training on workers next to the same one of the reference executor."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from drlpp.placement.candidate import Candidate
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.runtime.deploying.deployment import Deployment
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.reference.reference import ReferenceResult
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import largest_difference


@dataclass(frozen=True)
class TrainedTwice:
    """What workers and reference came to.

    Attributes:
        deployment: what the workers hold now.
        results: of every worker.
        state: parameters and buffers that the workers trained.
        reference: what the reference trained.
    """

    deployment: Deployment
    results: Mapping[int, RunResult]
    state: Mapping[str, Tensor]
    reference: ReferenceResult

    @property
    def difference(self) -> float:
        """The largest between two values of the states."""
        return largest_difference(self.state, self.reference.state)

    @property
    def losses(self) -> Mapping[object, float]:
        """The losses of all parts, as the workers found them."""
        return {
            part: loss for result in self.results.values() for part, loss in result.losses.items()
        }


def train_twice(
    session: ClusterSession,
    candidate: Candidate,
    optimizer: OptimizerSpec,
    minibatches: int,
    samples: Minibatches,
    options: RunOptions,
) -> TrainedTwice:
    """Train on a session's workers, which have the ``samples`` already, and by the reference."""
    reference = run_reference(
        session.captured,
        candidate.placement,
        samples,
        minibatches,
        method=candidate.method,
        optimizer=optimizer,
        options=options,
    )
    deployment = session.deploy(candidate, optimizer=optimizer)
    _, results = session.run(deployment, minibatches, options)
    state, _ = session.collect(deployment)
    return TrainedTwice(deployment, results, state, reference)
