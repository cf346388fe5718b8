"""Everything that a stage holds is on its device, whatever trains it; torch's device that holds
nothing stands for a GPU."""

import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import cycle
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.device.retargeting import move_graph_to_device
from drlpp.runtime.ipc.protocol import RunPlan, WeightPlan
from drlpp.runtime.stage import stage_runner
from drlpp.runtime.stage.gradients import SharedGradients
from drlpp.runtime.stage.minibatches import Minibatches
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.stage.weight_group import OWN
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import OptimizerSpec

THERE, HERE = torch.device("meta"), torch.device("cpu")
METHODS = {
    "vanilla": Method(policy="vanilla", recompute=True),
    "stash": Method(policy="stash"),
    "spectrain": Method(policy="spectrain"),
    "xpipe": Method(policy="xpipe"),
    "pipeoptim": Method(policy="pipeoptim"),
    "pipemare": Method(policy="pipemare", correction_decay=0.2),
}
OPTIMIZERS = ["sgd", "adamw", "nadam", "lion"]


@pytest.fixture(autouse=True)
def passes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast knows of no device that holds nothing."""
    monkeypatch.setattr(stage_runner, "passes_in", lambda precision, device: nullcontext())


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron"))


def optimizer_named(name: str) -> OptimizerSpec:
    if name == "lion":
        return OptimizerSpec.parse("tests.support.models.lion:Lion", lr=0.003)
    return OptimizerSpec(name=name)


def runner_on(
    device: torch.device,
    captured: CapturedModel,
    method: Method,
    optimizer: OptimizerSpec,
    before: StageRunner | None = None,
) -> StageRunner:
    """The whole model as a stage whose weights are a step old when its gradients come."""
    alone = Placement.from_assignment([0] * len(captured.graph), (0,))
    (program,) = pickle.loads(pickle.dumps(cut_stages(captured, alone)))
    for graph in program.graphs:
        move_graph_to_device(graph, device)
    runner = StageRunner(
        program=program,
        state=captured.state | captured.constants,
        method=method,
        optimizer=optimizer,
        delays={OWN: 1},
        minibatches=Minibatches(captured.task.inputs, captured.task.targets).on(device),
        optimizer_state=before.saved()[1] if before else {},
        device=device,
    )
    uses = {
        (b, 0): WeightUse(max(b - 1, 0), b, stashed=max(b - 1, 0), forward_lead=1) for b in range(4)
    }
    recomputed = frozenset(uses) if method.recompute else frozenset()
    runner.begin(RunPlan({OWN: WeightPlan(uses, [0.1] * 6, shared=True)}, recomputed=recomputed))
    return runner


def trained(runner: StageRunner, steps: int = 3) -> StageRunner:
    runner.forward((0, 0), {})
    for step in range(steps):
        runner.forward((step + 1, 0), {})
        if runner.method.recompute:
            runner.recompute((step, 0))
        runner.backward((step, 0), {})
        runner.update(1)
    return runner


def tensors_of(runner: StageRunner) -> Iterator[Tensor]:
    """All but numbers of steps, which stay with the host."""
    state = runner.saved()[1]
    held: list[Any] = [
        runner.weights_and_buffers(),
        [{k: v for k, v in kept.items() if k != "step"} for kept in state.values()],
        [policy.copies() for policy in runner.weights.policies],
    ]
    (gradients,) = runner.weights.gradients.values()
    assert isinstance(gradients, SharedGradients)
    held.append([bucket.flat for bucket in gradients._buckets])
    for tree in held:
        yield from (leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor))


@pytest.mark.parametrize(("method", "optimizer"), zip(METHODS, cycle(OPTIMIZERS), strict=False))
def test_everything_that_a_stage_holds_is_on_its_device(
    captured: CapturedModel, method: str, optimizer: str
) -> None:
    runner = trained(runner_on(THERE, captured, METHODS[method], optimizer_named(optimizer)))
    devices = {tensor.device for tensor in tensors_of(runner) if tensor.dim()}
    assert devices == {THERE}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_checkpoint_of_a_processor_goes_on_elsewhere(
    captured: CapturedModel, optimizer: str
) -> None:
    method, spec = METHODS["pipeoptim"], optimizer_named(optimizer)
    before = trained(runner_on(HERE, captured, method, spec))
    after = trained(runner_on(THERE, captured, method, spec, before))
    assert {tensor.device for tensor in tensors_of(after) if tensor.dim()} == {THERE}
    # Kernels are chosen for a device.
    (policy,) = after.weights.policies
    assert not policy.optimizer.param_groups[0].get("fused")


@pytest.mark.parametrize("method", ["stash", "vanilla"])
def test_what_the_model_returns_is_not_kept_for_the_backward(
    captured: CapturedModel, method: str
) -> None:
    """Of a language model it is by far the largest tensor; its loss keeps what it needs."""
    runner = runner_on(HERE, captured, METHODS[method], optimizer_named("sgd"))
    assert not runner.forward((0, 0), {})
    runner.forward((1, 0), {})
    if runner.method.recompute:
        runner.recompute((0, 0))
    assert not runner._in_flight[0, 0].outputs
    assert runner._in_flight[0, 0].loss is not None
