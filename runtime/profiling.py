"""Timing operators and links on the workers, for planners and the simulator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.optimizer_spec import OptimizerSpec
from drlpp.runtime.commands import LinkTimes, OperatorTimes
from drlpp.runtime.minibatches import Minibatches
from drlpp.runtime.passes import Loss
from drlpp.runtime.stage_runner import RunPlan, StageRunner
from drlpp.runtime.stages import StageOutput, StageProgram
from drlpp.training_options import Method
from drlpp.versions import WeightUse

_WARM_UPS = 2


def time_operators(
    programs: Sequence[StageProgram],
    state: Mapping[str, Tensor],
    minibatches: Minibatches,
    loss: Loss | None,
    optimizer: OptimizerSpec,
    repeats: int,
) -> OperatorTimes:
    """Run every operator as a stage of its own, one after the other, and time each.

    The loss is counted with the last operator, as it is computed where that is.
    """
    runners = [
        StageRunner(
            program=program,
            state=state,
            method=Method(schedule="gpipe", policy="sync"),
            optimizer=optimizer,
            delay=0,
            loss=loss if program.stage == len(programs) - 1 else None,
            minibatches=minibatches,
        )
        for program in programs
    ]
    for runner in runners:
        uses = {(repeat, 0): WeightUse(0, 0, stashed=0) for repeat in range(_WARM_UPS + repeats)}
        runner.begin(RunPlan(uses, rates=[float(optimizer.value("lr"))]))
    forward: list[list[float]] = [[] for _ in runners]
    backward: list[list[float]] = [[] for _ in runners]
    update: list[float] = []
    for repeat in range(_WARM_UPS + repeats):
        seconds = _one_pass(runners, (repeat, 0))
        begin = time.perf_counter()
        for runner in runners:
            runner.update(1)
        if repeat >= _WARM_UPS:
            update.append(time.perf_counter() - begin)
            for stage, (forward_seconds, backward_seconds) in enumerate(seconds):
                forward[stage].append(forward_seconds)
                backward[stage].append(backward_seconds)
    weight_bytes = sum(weight.nbytes for runner in runners for weight in runner.weights)
    return OperatorTimes(
        forward_seconds=[statistics.median(times) for times in forward],
        backward_seconds=[statistics.median(times) for times in backward],
        update_seconds_per_byte=statistics.median(update) / max(weight_bytes, 1),
    )


def _one_pass(runners: Sequence[StageRunner], part: tuple[int, int]) -> list[tuple[float, float]]:
    """Forward and backward seconds of every operator for one minibatch."""
    outputs: list[Sequence[Tensor]] = []
    forward = []
    for runner in runners:
        received = {
            StageOutput(source, index): outputs[source][index].detach()
            for source, contents in runner.program.receives.items()
            for index, _ in contents
        }
        begin = time.perf_counter()
        outputs.append(runner.forward(part, received))
        forward.append(time.perf_counter() - begin)
    gradients: list[dict[int, Tensor]] = [{} for _ in runners]
    backward = [0.0] * len(runners)
    for stage in reversed(range(len(runners))):
        begin = time.perf_counter()
        found = runners[stage].backward(part, gradients[stage])
        backward[stage] = time.perf_counter() - begin
        for key, gradient in found.items():
            known = gradients[key.stage].get(key.index)
            gradients[key.stage][key.index] = gradient if known is None else known + gradient
    return list(zip(forward, backward, strict=True))


def time_link(
    group: dist.ProcessGroup, rank: int, sizes_bytes: Sequence[int], repeats: int
) -> LinkTimes:
    """Half the time of a message's way to the other worker and back, for every size."""
    seconds = {}
    for size in sizes_bytes:
        tensor = torch.zeros(size, dtype=torch.uint8)
        times = []
        for _ in range(_WARM_UPS + repeats):
            begin = time.perf_counter()
            if rank == 0:
                group.send([tensor], 1, 0).wait()
                group.recv([tensor], 1, 0).wait()
            else:
                group.recv([tensor], 0, 0).wait()
                group.send([tensor], 0, 0).wait()
            times.append((time.perf_counter() - begin) / 2)
        seconds[size] = statistics.median(times[_WARM_UPS:])
    return LinkTimes(seconds)
