"""A training on workers, held against the reference executor, plain PyTorch, or a rule by hand.

Workers and reference share the schedule, its counts, and optimizers; the others share nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.runtime import Minibatches, RunOptions, run_reference
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import largest_difference
from tests.support.training.in_one_process import train_in_one_process
from tests.support.training.pipelines import draw, train
from tests.support.training.plain_steps import Weights

RATE, MOMENTUM = 0.1, 0.9
SGD = OptimizerSpec.parse("sgd", lr=RATE, momentum=MOMENTUM)

Rule = Callable[[Sequence[tuple[Tensor, Tensor]]], Weights]
"""Trains on minibatches of inputs and targets."""


@dataclass(frozen=True)
class Subject:
    """A model to train, and on what.

    Attributes:
        reference: of the model; its loss is the cross entropy.
        placements: of its graph, by name.
        samples: inputs and targets.
        order: the samples of every minibatch.
    """

    reference: ModelReference
    placements: Callable[[OpGraph], dict[str, Placement]]
    samples: tuple[list[Tensor], Tensor]
    order: Tensor

    @property
    def minibatches(self) -> int:
        return len(self.order)

    @cached_property
    def captured(self) -> CapturedModel:
        return capture(self.reference)


@dataclass(frozen=True)
class Trained:
    """How workers train a model."""

    subject: Subject
    method: Method
    optimizer: OptimizerSpec = SGD
    placement: str = "straight"
    rates: Sequence[float] | None = None

    @property
    def placed(self) -> Placement:
        return self.subject.placements(self.subject.captured.graph)[self.placement]

    @property
    def _options(self) -> RunOptions:
        return RunOptions(order=self.subject.order, rates=self.rates)

    def on_workers(self) -> Weights:
        """Return the weights that workers end with."""
        return train_in_one_process(
            self.subject.captured,
            Candidate(self.placed, self.method),
            self.optimizer,
            self.subject.minibatches,
            Minibatches(*self.subject.samples),
            self._options,
        )

    def with_reference(self) -> float:
        """Compare with the reference executor."""
        reference = run_reference(
            self.subject.captured,
            self.placed,
            Minibatches(*self.subject.samples),
            self.subject.minibatches,
            method=self.method,
            optimizer=self.optimizer,
            options=self._options,
        )
        return largest_difference(self.on_workers(), reference.state)

    def with_pytorch(self) -> float:
        """Compare with the module and SGD in an ordinary loop over whole minibatches."""
        module = self.subject.reference.build().module
        optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
        minibatches = draw(self.subject.samples[0], self.subject.samples[1], self.subject.order)
        clip_norm = self.method.clip_norm
        train(module, F.cross_entropy, optimizer, minibatches, clip_norm=clip_norm)
        return largest_difference(self.on_workers(), module.state_dict())

    def with_rule(self, rule: Rule) -> float:
        """Compare with a loop that knows of no schedule."""
        (inputs,), targets = self.subject.samples
        wanted = rule([(inputs[indices], targets[indices]) for indices in self.subject.order])
        found = self.on_workers()
        return largest_difference({name: found[name] for name in wanted}, wanted)
