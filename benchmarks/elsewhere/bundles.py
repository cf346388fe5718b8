"""Bundles for torch: written, started, and compared with the reference executor."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import RunFailure
from drlpp.exporting.nearest import nearest_chain
from drlpp.exporting.torch_bundle import TorchExport
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.runtime import Minibatches, RunOptions
from drlpp.runtime.reference.reference import ReferenceExecutor
from drlpp.specs.optimizer_spec import OptimizerSpec

SGD = OptimizerSpec(name="sgd", options={"lr": 0.01, "momentum": 0.9})

_TIMEOUT_SECONDS = 900

_REFUSING = """
import sys

class _Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "drlpp":
            raise ImportError("drlpp is not installed here")

sys.meta_path.insert(0, _Refusing())
"""


def export_of(captured: CapturedModel, candidate: Candidate, window: int) -> TorchExport:
    """Return the nearest bundle of a candidate.

    Raises:
        InvalidInput: there is none, with the reason.
    """
    accelerators = 1 + max(candidate.placement.accelerators)
    plan = ExecutionPlan.of(candidate, captured.graph, accelerators)
    return TorchExport(captured, nearest_chain(plan), SGD, seed=0, window=window)


def written(export: TorchExport, folder: Path) -> Path:
    """Write a bundle and what starts it; return its folder."""
    export.write(folder)
    shutil.copy(Path(__file__).parent / "driver.py", folder)
    return folder


def weights_difference(export: TorchExport, folder: Path, minibatches: int) -> tuple[float, float]:
    """Train with torch, where drlpp cannot be imported, and with our reference executor.

    Returns:
        the largest difference between any two of their weights, and the most that training has
        changed one.
    """
    file = folder / "trained.pt"
    _start(folder, export, "weights", minibatches, str(file), without_drlpp=True)
    found: dict[str, Tensor] = torch.load(file)
    wanted = reference_state(export, minibatches)
    if found.keys() != wanted.keys():
        raise RunFailure(f"{folder}: names of weights differ: {found.keys() ^ wanted.keys()}")
    return largest_difference(found, wanted), largest_difference(wanted, export.captured.state)


def largest_difference(ones: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> float:
    """Return the largest difference between numbers with a fraction of the same name."""
    return max(
        (ones[name] - other).abs().max().item()
        for name, other in others.items()
        if other.is_floating_point()
    )


def seconds_in_torch(
    export: TorchExport, folder: Path, minibatches: int, speeds: Sequence[float]
) -> float:
    """Return what a minibatch takes there, the pipeline's filling in every step included."""
    own = [speeds[stage.accelerators[0]] for stage in export.nearest.candidate.placement.stages]
    text = ",".join(map(str, own))
    printed = _start(folder, export, "time", minibatches, text, without_drlpp=False)
    return float(json.loads(printed.strip().splitlines()[-1]))


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


def _start(
    folder: Path,
    export: TorchExport,
    mode: str,
    minibatches: int,
    more: str,
    *,
    without_drlpp: bool,
) -> str:
    refusing = folder / "without_drlpp"
    refusing.mkdir(exist_ok=True)
    (refusing / "sitecustomize.py").write_text(_REFUSING if without_drlpp else "")
    ranks = len(export.nearest.candidate.placement.stages)
    known = os.environ.get("PYTHONPATH", "")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(ranks), "driver.py", mode, str(minibatches), more),
        ],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(refusing), str(folder), known]),
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "Error" in line]
        raise RunFailure(f"{folder}: a rank failed: {lines[-1] if lines else done.stderr[-300:]}")
    return done.stdout
