"""Graphs that are made and loaded for a deployment leave no text of their code behind."""

import linecache
import pickle

from torch.fx import graph_module

from drlpp.capturing.capture import capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.deployment import deployment_commands
from drlpp.runtime.ipc.protocol import GroupSpec, Transport
from drlpp.runtime.stage.graph_code import discarded_fx_sources
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec


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
        in_flight=False,
    )
    assert kept() == before
    with discarded_fx_sources():
        (program,) = pickle.loads(commands[0].stages)
    assert kept() == before
    assert program.function.graph.nodes
