"""Running one stage in evaluation mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drlpp.runtime.minibatches import Minibatches
from drlpp.runtime.passes import Loss, Received, StageValues, as_sent
from drlpp.runtime.precision import passes_in
from drlpp.runtime.stage_runner import StageRunner
from drlpp.runtime.stages import StageProgram
from drlpp.schedule import Part


@dataclass
class EvaluationRunner:
    """Forward passes of a stage in evaluation mode, on the weights of the runner that trains it.

    Attributes:
        program: the stage, cut from the evaluation graph.
        trained: the same stage in training.
        score: gives one number for each sample from the model's flat outputs and the targets
            (last stage).
        minibatches: where inputs and targets come from.
        scores: of every part, one number for each sample.
    """

    program: StageProgram
    trained: StageRunner
    score: Loss | None
    minibatches: Minibatches
    scores: dict[Part, Tensor] = field(default_factory=dict)

    def forward(self, part: Part, received: Received) -> Sequence[Tensor]:
        """Perform the forward pass of ``part``; nothing is kept for a backward."""
        with torch.no_grad(), passes_in(self.trained.method.precision, self.trained.device):
            state = self.trained.weights_and_buffers()
            inputs = {i: self.minibatches.input(i, part) for i in self.program.input_indices}
            values = StageValues(inputs, received, state, state)
            outputs = values.call(self.program)
            if self.score is not None:
                results = values.results(self.program, outputs)
                self.scores[part] = self.score(*results, self.minibatches.targets(part))
        return as_sent(self.program, outputs)
