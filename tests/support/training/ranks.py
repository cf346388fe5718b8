"""Training on a few ranks by torch's own data parallelism, in processes that import only this."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.models.task import Task
from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.ipc.protocol import ParallelTraining, ParallelWay
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.optimizer_spec import OptimizerSpec, ParameterGroup

RANKS = 2
SAME: tuple[ParallelWay, ...] = ("ddp", "zero-1", "zero-2", "fsdp")
ROUNDED: ParallelWay = "ddp-bf16"
LOCAL: tuple[ParallelWay, ...] = ("local-sgd", "diloco")
EVERY = 3
"""Updates after which these average; there are twice as many."""
GROUPED = OptimizerSpec.parse("adamw", [ParameterGroup.parse("*.bias", lr=0.05)], lr=0.1)
CASES: dict[str, tuple[dict[str, Any], OptimizerSpec, float]] = {
    "as it is": ({}, GROUPED, 1.0),
    "emulated, clipped": ({"clip_norm": 0.5}, OptimizerSpec.parse("sgd", lr=0.1), 0.5),
    "emulated, accumulated": ({"accumulate": 2}, OptimizerSpec.parse("adam"), 0.5),
}


def layered() -> Task:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6), nn.ReLU(inplace=True)) for _ in range(2)]
    module = nn.Sequential(nn.Sequential(*layers), nn.Linear(6, 3)).double()
    return Task(module, (torch.randn(8, 6).double(),), torch.arange(8) % 3, F.cross_entropy)


def wide() -> Task:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(24, 24), nn.Linear(24, 3))
    return Task(module, (torch.randn(8, 24),), torch.arange(8) % 3, F.cross_entropy)


def train(rank: int, folder: str) -> None:
    """Train in each way: a second loop continues from the state of a first."""
    from drlpp.runtime.worker.parallel_loop import ParallelLoop

    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", RANKS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    found: dict[tuple[str, str], dict[str, Tensor]] = {}
    for case, (options, optimizer, speed) in CASES.items():
        for way in (*SAME, ROUNDED, *LOCAL):
            method = choose_method("stash", options)
            training, state = ParallelTraining(way, method, optimizer, 0, EVERY), None
            for updates in (EVERY + 1, EVERY - 1):
                task = layered()
                loop = ParallelLoop(training, task, Accelerator(), speed)
                loop.warm_up(task.inputs, task.targets, state)
                for _ in range(updates * method.accumulate):
                    loop.step(task.inputs, task.targets)
                state = copy.deepcopy(loop.state())
            found[case, way] = loop.whole()
    for updates in ((6,), (3, 3)):
        found["compressed", str(updates)] = _compressed(updates)
    if rank == 0:
        torch.save(found, f"{folder}/weights.pt")
    dist.destroy_process_group()


def _compressed(updates: Sequence[int]) -> dict[str, Tensor]:
    """Train a matrix of which PowerSGD sends less, in one loop or several; return the weights."""
    from drlpp.runtime.worker.parallel_loop import ParallelLoop

    training = ParallelTraining("powersgd", Method(), OptimizerSpec.parse("adam", lr=0.01), 0)
    state = None
    for count in updates:
        task = wide()
        loop = ParallelLoop(training, task, Accelerator(), 0.5)
        loop.warm_up(task.inputs, task.targets, state)
        for _ in range(count):
            loop.step(task.inputs, task.targets)
        state = copy.deepcopy(loop.state())
    assert state
    assert state["power_sgd"]["error_dict"]
    return loop.whole()
