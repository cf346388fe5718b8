"""Running one stage in evaluation mode."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drlpp.runtime.stage.data.minibatches import MinibatchSource
from drlpp.runtime.stage.losses import Losses
from drlpp.runtime.stage.passes.passes import Received, StageValues, as_sent
from drlpp.runtime.stage.passes.precision import passes_in
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.stage.stages import StageProgram
from drlpp.schedule.actions import MicrobatchId


@dataclass
class EvaluationRunner:
    """Forward passes of a stage in evaluation mode, on the weights of the runner that trains it.

    Attributes:
        program: the stage, cut from the evaluation graph.
        trained: the same stage in training.
        minibatches: where inputs and targets come from.
        passes_last: whether no other stage of the worker needs a minibatch after this one.
        losses: of every part.
        scores: of every part, one number for each sample.
    """

    program: StageProgram
    trained: StageRunner
    minibatches: MinibatchSource
    passes_last: bool = True
    losses: Losses = field(default_factory=Losses)
    scores: dict[MicrobatchId, Tensor] = field(default_factory=dict)

    def wait_for(self, minibatch: int) -> None:
        """Return when what this stage needs of a minibatch is there."""
        if self.program.reads_data:
            if self.passes_last:
                self.minibatches.passed(minibatch)
            self.minibatches.wait_for(minibatch)

    def forward(self, part: MicrobatchId, received: Received) -> Mapping[int, Tensor]:
        """Perform the forward pass of ``part``; nothing is kept for a backward."""
        program = self.program
        with torch.no_grad(), passes_in(self.trained.method.precision, self.trained.device):
            state = self.trained.weights_and_buffers()
            inputs = {i: self.minibatches.input(i, part) for i in program.inputs}
            values = StageValues(inputs, received, state, state)
            outputs = values.call(program)
            if program.loss is not None:
                results = values.results(program, outputs)
                targets = self.minibatches.targets(part)
                self.losses.add(part, program.loss(*results, *targets))
                if program.score is not None:
                    self.scores[part] = program.score(*results, *targets)
        return as_sent(program, outputs)
