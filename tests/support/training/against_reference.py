"""A training on workers next to that of the reference executor, and to one that was resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import pytest
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
    data: Minibatches,
    options: RunOptions,
    cuts: Sequence[int],
    folder: Path,
) -> None:
    """Check that resuming at any of the cuts changes no bit, and that runs equal the reference's.

    The session's workers have the ``data``.
    """
    assert options.order is not None
    runs = list(pairwise([0, *cuts, len(options.order)]))
    placement, method = candidate.placement, candidate.method
    reference = ReferenceExecutor(session.captured, placement, data, method, optimizer)
    deployment = session.deploy(candidate, optimizer=optimizer)
    paths = {}
    for begin, end in runs:
        part = _part(options, begin, end)
        wanted = reference.run(end - begin, part)
        _, results = session.run(deployment, end - begin, part)
        losses = {part: loss for one in results.values() for part, loss in one.losses.items()}
        assert losses == pytest.approx(wanted, rel=1e-7)
        whole, state = session.collect(deployment)
        paths[end] = folder / f"{end}.pt"
        write_checkpoint(paths[end], {"model": whole, "optimizer": state})
    assert largest_difference(whole, reference.state) < 1e-7
    for cut in cuts:
        deployment = session.deploy(candidate, optimizer=optimizer, checkpoint=paths[cut])
        for begin, end in runs:
            if begin >= cut:
                session.run(deployment, end - begin, _part(options, begin, end))
        resumed, _ = session.collect(deployment)
        assert resumed.keys() == whole.keys()
        assert not [name for name in whole if not torch.equal(resumed[name], whole[name])]


def _part(options: RunOptions, begin: int, end: int) -> RunOptions:
    """Return what the minibatches from ``begin`` to ``end`` of a training are run with."""
    assert options.order is not None
    return replace(
        options,
        order=options.order[begin:end],
        rates=options.rates[begin:] if options.rates else None,
        first_minibatch=begin,
        asynchronous_before=begin,
    )
