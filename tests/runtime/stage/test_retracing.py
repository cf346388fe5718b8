"""What a worker loads computes what was sent to it, in every pass anew."""

import pickle

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.stage.passes.operators import begin_pass


class FromNothing(nn.Module):
    """Two operators that no input reaches: a mask, and a tensor that is written in place."""

    def forward(self, x: Tensor) -> Tensor:
        sums = torch.zeros(4, dtype=x.dtype)
        halves = sums.view(2, 2)
        halves += x.sum()
        return x * F.dropout(torch.ones(4), 0.5, self.training) + sums


def test_what_no_input_reaches_is_computed_in_every_pass() -> None:
    x = torch.rand(3, 4)
    captured = capture(ModelReference.named("tests:nothing"), Task(FromNothing(), (x,)))
    alone = Placement.from_assignment([0] * len(captured.graph), [0])
    (program,) = cut_stages(captured, alone)
    loaded = pickle.loads(pickle.dumps(program))
    seen = set()
    for minibatch in range(8):
        begin_pass(seed=0, part=(minibatch, 0))
        wanted = program.function(x)
        begin_pass(seed=0, part=(minibatch, 0))
        found = loaded.function(x)
        torch.testing.assert_close(found, wanted)
        seen.add(tuple((found[0][0] > x.sum()).tolist()))
    assert len(seen) > 1
