"""Are models of today captured, cut into four stages, and trained to the right weights?

    python -m benchmarks.models_today --document docs/models.md

Every model is small, in 64 bits and without dropout, and trains on the same minibatch again and
again with AdamW: with flushed 1F1B of two microbatches against the user's module in an ordinary
loop, with PipeDream's stashing and PipeOptim against the reference executor.
"""

from __future__ import annotations

import copy
import json
import time
import warnings
from dataclasses import asdict, dataclass
from typing import Annotated

import torch
import typer
from pandas import DataFrame
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from benchmarks.models_today.models import MODELS, in_float64
from benchmarks.options import DocumentOption, JsonOption
from benchmarks.report import markdown, terminal, write_between
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import ModelNote
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, RunOptions, run_reference
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

BEGIN, END = "<!-- models today: written by benchmarks.models_today -->", "<!-- end of models -->"
STAGES = 4
FLUSHED = Method(schedule="1f1b-flush", policy="sync", microbatches=2)
_ADAMW = OptimizerSpec.parse("adamw", lr=1e-3)

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@dataclass(frozen=True)
class Row:
    """What came out for a model.

    Attributes:
        model: its name.
        operators: of its graph.
        largest_share: of all parameters, what the operator with most of them has.
        ties: parameters that stages of the placement share.
        capture_seconds: what capturing it took.
        differences: the largest of any weight, by method; ``nudged`` is of two plain trainings.
    """

    model: str
    operators: int
    largest_share: float
    ties: int
    capture_seconds: float
    differences: dict[str, float]


@app.command()
def main(
    models: Annotated[str, typer.Option(help="Names of the table.")] = ",,".join(MODELS),
    minibatches: Annotated[int, typer.Option(min=1, help="Of each training.")] = 200,
    document: DocumentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Capture, cut and train every model, and compare weights."""
    if document is not None:
        write_between(document, BEGIN, END, "Being measured.\n")
    rows = [measure(name, minibatches) for name in models.split(",,")]
    table = DataFrame([_cells(row) for row in rows])
    if document is not None:
        write_between(document, BEGIN, END, markdown(table) + "\n")
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
    else:
        build_console().print(terminal(table))


def measure(name: str, minibatches: int) -> Row:
    """Return a row of the table."""
    torch.manual_seed(0)
    task = in_float64(MODELS[name]())
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ModelNote)
        captured = capture(ModelReference.of(task), task)
    seconds = time.perf_counter() - begin
    count = len(captured.graph)
    placement = Placement.from_assignment(
        [operator * STAGES // count for operator in range(count)], range(STAGES)
    )
    plain = trained_plainly(captured.task, minibatches)
    differences = {}
    with ClusterSession(captured, workers=STAGES) as session:
        for method in (FLUSHED, Method(policy="stash"), Method(policy="pipeoptim")):
            deployment = session.deploy(placement, method, _ADAMW)
            session.run(deployment, minibatches)
            found, _ = session.collect(deployment)
            wanted = (
                plain
                if method.flushes
                else trained_by_reference(captured, placement, method, minibatches)
            )
            differences[method.policy] = largest_difference(found, wanted)
    alike = captured.task._replace(module=nudged(task.module))
    differences["nudged"] = largest_difference(trained_plainly(alike, minibatches), plain)
    sizes = [operator.parameter_bytes for operator in captured.graph.operators]
    return Row(
        model=name,
        operators=count,
        largest_share=max(sizes) / captured.graph.parameter_bytes,
        ties=len(placement.ties(captured.graph)),
        capture_seconds=seconds,
        differences=differences,
    )


def largest_difference(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    """Return the largest difference of a number; what is not finite is an error."""
    assert found.keys() == wanted.keys(), found.keys() ^ wanted.keys()
    numbers = torch.cat(
        [(value - wanted[key]).abs().flatten() for key, value in found.items() if value.numel()]
    )
    assert numbers.isfinite().all(), "training has blown up"
    return numbers.max().item()


def nudged(module: nn.Module) -> nn.Module:
    """Return a module whose weights differ in the last bits: what rounding becomes in training."""
    module = copy.deepcopy(module)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1 + 2 * torch.finfo(parameter.dtype).eps)
    return module


def trained_plainly(task: Task, minibatches: int) -> dict[str, Tensor]:
    """Return the user's module after a training in an ordinary loop."""
    module = copy.deepcopy(task.module)
    optimizer = torch.optim.AdamW(module.parameters(), **_ADAMW.complete)
    for _ in range(minibatches):
        optimizer.zero_grad()
        outputs = module(**task.inputs) if isinstance(task.inputs, dict) else module(*task.inputs)
        loss = outputs["loss"] if task.loss is None else task.loss(outputs, task.targets)
        loss.backward()
        optimizer.step()
    return module.state_dict()


def trained_by_reference(
    captured: CapturedModel, placement: Placement, method: Method, minibatches: int
) -> dict[str, Tensor]:
    """Return what the reference executor makes of the same training."""
    task = captured.task
    data = Minibatches(pytree.tree_leaves(task.inputs), task.targets)
    return run_reference(
        captured,
        placement,
        data,
        minibatches,
        method=method,
        optimizer=_ADAMW,
        options=RunOptions(),
    ).state


def _cells(row: Row) -> dict[str, str]:
    headings = {
        "sync": "flushed, plain PyTorch",
        "stash": "stashing",
        "pipeoptim": "PipeOptim",
        "nudged": "plain, last bits off",
    }
    return {
        "model": row.model,
        "operators": str(row.operators),
        "largest operator": f"{row.largest_share:.0%} of the parameters",
        "shared by stages": str(row.ties),
        "captured in": f"{row.capture_seconds:.1f} s",
        **{headings[policy]: f"{value:.0e}" for policy, value in row.differences.items()},
    }


if __name__ == "__main__":
    run_program(app, "benchmarks.models_today")
