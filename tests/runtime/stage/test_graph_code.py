"""Graphs that are made and loaded: all is computed in every pass, and no text of code is left."""

import linecache
import pickle

import torch
from torch import Tensor, nn
from torch.fx import graph_module
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.deployment import deployment_commands
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.ipc.protocol import GroupSpec, Transport
from drlpp.runtime.stage.graph_code import discarded_fx_sources
from drlpp.runtime.stage.passes.operators import begin_pass
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec


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


def kept() -> tuple[set[str], set[str]]:
    """Names of sources that are kept."""
    generated = {name for name in linecache.cache if name.startswith("<eval")}
    return set(graph_module._loader.eval_cache), generated


def test_a_deployment_keeps_no_sources() -> None:
    captured = capture(ModelReference.named("tests.support.models.small:forked"))
    placement = Placement.from_assignment([0] * len(captured.graph), (0,))
    before = kept()
    commands = deployment_commands(
        captured,
        ExecutionPlan.of(Candidate(placement, Method()), captured.graph, 1),
        OptimizerSpec(),
        GroupSpec("deployment", (0,), Transport()),
        seed=0,
        checkpoint=None,
    )
    assert kept() == before
    with discarded_fx_sources():
        (program,) = pickle.loads(commands[0].stages)
    assert kept() == before
    assert program.function.graph.nodes
