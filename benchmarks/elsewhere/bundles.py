"""What is exported, and what our reference executor makes of it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.exporting.nearest import nearest_chain
from drlpp.exporting.torch_bundle import TorchExport
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.runtime import Minibatches, RunOptions
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.specs.optimizer_spec import OptimizerSpec

SGD = OptimizerSpec(name="sgd", options={"lr": 0.01, "momentum": 0.9})


def export_of(captured: CapturedModel, candidate: Candidate, window: int) -> TorchExport:
    """Return the nearest bundle of a candidate.

    Raises:
        InvalidInput: there is none, with the reason.
    """
    accelerators = 1 + max(candidate.placement.accelerators)
    plan = ExecutionPlan.of(candidate, captured.graph, accelerators)
    return TorchExport(captured, nearest_chain(plan), SGD, seed=0, window=window)


def largest_difference(ones: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """Return the largest difference between numbers with a fraction of the same name."""
    return max(
        (ones[name] - other).abs().max().item()
        for name, other in others.items()
        if other.is_floating_point()
    )


def reference_state(export: TorchExport, minibatches: int) -> dict[str, Tensor]:
    """Return what our reference executor has after training on the example again and again."""
    captured, candidate = export.captured, export.nearest.candidate
    task, method = captured.task, candidate.method
    together = method.accumulate if method.flushes else export.window
    order = torch.arange(task.batch_size).repeat(minibatches, 1)
    data = Minibatches(task.inputs, task.targets)
    executor = ReferenceExecutor(
        captured, candidate.placement, data, method, export.optimizer, export.seed
    )
    for first in range(0, minibatches, together):
        executor.run(together, RunOptions(order=order[first:], first_minibatch=first))
    return executor.state()
