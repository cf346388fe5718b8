"""How do the time and the memory of a capture grow with a model, and what of it is torch.export?

    python -m benchmarks.speed capture            # several minutes; --json for programs

Every row is one model of small layers in a process of its own: a *chain* of layers and
activations, *branches* of ten operators from one input, and a chain in which every layer is called
twice (*shared*). Seconds are the processor's, of which other programs take less. *Growth* is the
exponent k in seconds ∝ operators^k since the row above, 1 where time grows as the model does.
Memory is what the process grew by at its peak, the model's own weights included. *The rest* is all
but ``torch.export.export``, the comparison of gradients (``check``) included.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import platform
import resource
import time
import warnings
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated, Any

import torch
import typer
from rich import box
from rich.filesize import decimal
from rich.table import Table
from torch import Tensor, nn

from drlpp.capturing.capture import capture
from drlpp.capturing.tracing.dropped import replaced
from drlpp.cli.command_line import build_console
from drlpp.errors import ModelNote
from drlpp.io.formatting import seconds_text
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task

KINDS = ("chain", "branches", "shared")
SIZES = (1_000, 3_000, 10_000)
_WIDTH = 4
_OPERATORS_OF_A_BRANCH = 10
_WARM_UP = 100


@dataclass(frozen=True)
class Row:
    """What capturing one model took.

    ``nodes`` are those of its aten graph.
    """

    kind: str
    operators: int
    nodes: int
    seconds: float
    export_seconds: float
    memory_bytes: int


def main(
    as_json: Annotated[bool, typer.Option("--json", help="Print rows as JSON.")] = False,
) -> None:
    """Time the capture of models of 1,000 to 10,000 operators."""
    console = build_console()
    # Processes that have imported nothing else, so that their memory is the capture's.
    context = multiprocessing.get_context("spawn")
    rows = []
    for kind in KINDS:
        for size in SIZES:
            with context.Pool(1) as pool:
                rows.append(pool.apply(time_capture, (kind, size)))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    console.print(table_of(rows))
    console.print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, "
        f"{os.cpu_count()} cores"
    )


def time_capture(kind: str, size: int) -> Row:
    """Capture one model of about ``size`` operators."""
    torch.set_num_threads(1)
    # What shares weights is as it should be.
    warnings.simplefilter("ignore", ModelNote)
    export = torch.export.export
    exporting = 0.0

    def timed(*arguments: Any, **options: Any) -> Any:
        nonlocal exporting
        begin = time.process_time()
        try:
            return export(*arguments, **options)
        finally:
            exporting += time.process_time() - begin

    # What is imported or built once, whatever the size.
    capture(_reference(kind, _WARM_UP))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with replaced(torch.export, "export", timed):
        begin = time.process_time()
        captured = capture(_reference(kind, size))
        seconds = time.process_time() - begin
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return Row(
        kind=kind,
        operators=len(captured.graph),
        nodes=len(captured.module.graph.nodes),
        seconds=seconds,
        export_seconds=exporting,
        memory_bytes=grown * 1024,
    )


def _reference(kind: str, size: int) -> ModelReference:
    return ModelReference.named(f"{__name__}:made_up", kind=kind, size=size)


def made_up(kind: str, size: int) -> Task:
    """Return a model of about ``size`` operators."""
    layers = {
        "chain": lambda: _layers(size // 2),
        "branches": lambda: _Branches(size // _OPERATORS_OF_A_BRANCH),
        # Two uses of a layer and what lies between them are one operator.
        "shared": lambda: _Shared(size // 2),
    }
    return Task(layers[kind](), (torch.randn(2, _WIDTH),))


def _layers(count: int) -> nn.Sequential:
    return nn.Sequential(
        *(part for _ in range(count) for part in (nn.Linear(_WIDTH, _WIDTH), nn.ReLU()))
    )


class _Branches(nn.Module):
    """Short chains that read the input; their results are added up."""

    def __init__(self, count: int) -> None:
        super().__init__()
        each = _OPERATORS_OF_A_BRANCH // 2
        self.branches = nn.ModuleList(_layers(each) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([branch(x) for branch in self.branches]).sum(0)


class _Shared(nn.Module):
    """Every layer is called twice."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH) for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(layer(x).relu()).relu()
        return x


def growth(rows: list[Row]) -> dict[Row, float]:
    """Return how seconds grow with operators: the exponent since the next smaller of the kind."""
    return {
        larger: math.log(larger.seconds / smaller.seconds)
        / math.log(larger.operators / smaller.operators)
        for smaller, larger in pairwise(rows)
        if smaller.kind == larger.kind
    }


def table_of(rows: list[Row]) -> Table:
    """Return the rows, and how time grows with operators."""
    table = Table(title="Capturing a model", title_justify="left", box=box.SIMPLE)
    table.add_column("model")
    for column in (
        "operators",
        "nodes",
        "seconds",
        "torch.export",
        "the rest",
        "growth",
        "memory",
        "for each operator",
    ):
        table.add_column(column, justify="right")
    exponents = growth(rows)
    for row in rows:
        table.add_row(
            row.kind,
            f"{row.operators:,}",
            f"{row.nodes:,}",
            seconds_text(row.seconds),
            seconds_text(row.export_seconds),
            seconds_text(row.seconds - row.export_seconds),
            f"{exponents[row]:.2f}" if row in exponents else "–",
            decimal(row.memory_bytes),
            decimal(round(row.memory_bytes / row.operators)),
        )
    return table
