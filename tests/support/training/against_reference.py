"""A training on workers next to that of the reference executor, and to one that was resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from drlpp.placement.candidate import Candidate
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.runtime.deploying.deployment import Deployment
from drlpp.runtime.ipc.protocol import RunResult
from drlpp.runtime.ipc.tensor_file import write_checkpoint
from drlpp.runtime.reference.reference import ReferenceExecutor
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
    reference: ReferenceExecutor

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


def assert_resumes(
    session: ClusterSession,
    candidate: Candidate,
    optimizer: OptimizerSpec,
    options: RunOptions,
    cuts: Sequence[int],
    folder: Path,
) -> dict[int, Path]:
    """Check that neither checkpoints at cuts nor resuming from them change a bit.

    Returns:
        The checkpoints.
    """
    assert options.order is not None
    minibatches, found = len(options.order), []
    paths = {cut: folder / f"{cut}.pt" for cut in cuts}

    def save(cut: int, results: Mapping[int, RunResult]) -> None:
        write_checkpoint(paths[cut], session.checkpoint(deployment))

    for stops in ((), cuts):
        deployment = session.deploy(candidate, optimizer=optimizer)
        _, results = session.run(deployment, minibatches, options, cuts=stops, on_cut=save)
        losses = {part: loss for one in results.values() for part, loss in one.losses.items()}
        found.append((session.collect(deployment)[0], losses))
    (whole, losses), (stopped, losses_with_stops) = found
    assert losses_with_stops == losses
    states = [stopped]
    for cut, path in paths.items():
        deployment = session.deploy(candidate, optimizer=optimizer, checkpoint=path, in_flight=True)
        session.run(deployment, minibatches, options, start=cut)
        states.append(session.collect(deployment)[0])
    for state in states:
        assert state.keys() == whole.keys()
        assert not [name for name in whole if not torch.equal(state[name], whole[name])]
    return paths
