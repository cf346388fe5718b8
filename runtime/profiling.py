"""Timing operators and links on the workers, for planners and the simulator.

Every operator runs as a stage of its own, as it would in a pipeline, and the whole model as one
stage. A stage of n operators is quicker than n stages: what a pass costs besides its operators is
found by comparing the two.

On a CPU the clock is the processor time of the worker's thread, which other processes on the
machine do not stretch. On other devices it is the time until the device has finished.
"""

from __future__ import annotations

import pickle
import statistics
import time
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.runtime.commands import LinkTimes, OperatorTimes, ProfileOperators
from drlpp.runtime.minibatches import Minibatches
from drlpp.runtime.passes import Loss
from drlpp.runtime.policies import Displaced
from drlpp.runtime.stage_runner import Received, RunPlan, StageRunner
from drlpp.runtime.stages import StageOutput, StageProgram
from drlpp.training_options import Method
from drlpp.versions import WeightUse

_WARM_UPS = 3

Clock = Callable[[], float]


def time_operators(
    command: ProfileOperators, state: Mapping[str, Tensor], minibatches: Minibatches
) -> OperatorTimes:
    """Run every operator as a stage of its own, one after the other, and time each.

    The loss is counted with the last operator, as it is computed where that is.
    """
    programs, whole, loss = pickle.loads(command.programs)
    tensors = [*state.values(), *minibatches.inputs((0, 0))]
    device = next(iter(tensors)).device
    clock = _clock(device)
    repeats = command.repeats
    runners = _runners(programs, command, state, minibatches, loss)
    forward: list[list[float]] = [[] for _ in runners]
    backward: list[list[float]] = [[] for _ in runners]
    updates: list[float] = []
    kept = _Kept(runners, minibatches.inputs((0, 0)))
    for repeat in range(_WARM_UPS + repeats):
        seconds = _one_pass(runners, (repeat, 0), clock, kept if repeat == 0 else None)
        begin = clock()
        for runner in runners:
            runner.update(1)
        if repeat >= _WARM_UPS:
            updates.append(clock() - begin)
            for stage, (forward_seconds, backward_seconds) in enumerate(seconds):
                forward[stage].append(forward_seconds)
                backward[stage].append(backward_seconds)
    del runners
    (together,) = _runners([whole], command, state, minibatches, loss)
    whole_seconds = []
    for repeat in range(_WARM_UPS + repeats):
        whole_seconds += _one_pass([together], (repeat, 0), clock)
        together.update(1)
    return OperatorTimes(
        device=device.type,
        forward=forward,
        backward=backward,
        whole_forward=[forward_seconds for forward_seconds, _ in whole_seconds[_WARM_UPS:]],
        whole_backward=[backward_seconds for _, backward_seconds in whole_seconds[_WARM_UPS:]],
        kept_bytes=kept.bytes_,
        update_seconds=updates,
        prediction_seconds=_time_predictions(whole, command, state, minibatches, loss, clock),
        weight_bytes=sum(weight.nbytes for weight in together.weights),
    )


def _clock(device: torch.device) -> Clock:
    if device.type == "cpu":
        return time.thread_time

    def after_all_work() -> float:
        torch.accelerator.synchronize(device)
        return time.perf_counter()

    return after_all_work


def _runners(
    programs: Sequence[StageProgram],
    command: ProfileOperators,
    state: Mapping[str, Tensor],
    minibatches: Minibatches,
    loss: Loss | None,
    method: Method | None = None,
) -> list[StageRunner]:
    """Runners of stages, ready for any number of passes without an update in between."""
    runners = [
        StageRunner(
            program=program,
            state=state,
            method=method or Method(schedule="gpipe", policy="sync"),
            optimizer=command.optimizer,
            delay=0 if method is None else 1,
            loss=loss if program.stage == len(programs) - 1 else None,
            minibatches=minibatches,
        )
        for program in programs
    ]
    passes = _WARM_UPS + command.repeats
    for runner in runners:
        uses = {(number, 0): WeightUse(0, 0, stashed=0) for number in range(passes)}
        runner.begin(RunPlan(uses, rates=[float(command.optimizer.value("lr"))]))
    return runners


class _Kept:
    """Counts what the forward of every operator keeps for the backward, each storage once.

    What an operator received was made, and is counted, elsewhere, unless only its reader keeps it.
    """

    def __init__(self, runners: Sequence[StageRunner], inputs: Sequence[Tensor]) -> None:
        self.bytes_ = [0] * len(runners)
        held = [t for runner in runners for t in (*runner.weights, *runner.buffers.values())]
        self._known = {tensor.untyped_storage().data_ptr() for tensor in (*held, *inputs)}
        self._alive: list[Tensor] = []

    def forward(
        self, stage: int, runner: StageRunner, part: tuple[int, int], received: Received
    ) -> Sequence[Tensor]:
        """Perform a forward, and count."""

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._known.add(storage.data_ptr())
                # As long as it lives, no other storage gets its address.
                self._alive.append(tensor.detach())
                self.bytes_[stage] += storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            return runner.forward(part, received)


def _one_pass(
    runners: Sequence[StageRunner],
    part: tuple[int, int],
    clock: Clock,
    kept: _Kept | None = None,
) -> list[tuple[float, float]]:
    """Forward and backward seconds of every operator for one minibatch."""
    outputs: list[Sequence[Tensor]] = []
    forward = []
    for stage, runner in enumerate(runners):
        received = {
            StageOutput(source, index): outputs[source][index].detach()
            for source, contents in runner.program.receives.items()
            for index, _ in contents
        }
        begin = clock()
        outputs.append(
            runner.forward(part, received)
            if kept is None
            else kept.forward(stage, runner, part, received)
        )
        forward.append(clock() - begin)
    gradients: list[dict[int, Tensor]] = [{} for _ in runners]
    backward = [0.0] * len(runners)
    for stage in reversed(range(len(runners))):
        begin = clock()
        found = runners[stage].backward(part, gradients[stage])
        backward[stage] = clock() - begin
        for key, gradient in found.items():
            known = gradients[key.stage].get(key.index)
            gradients[key.stage][key.index] = gradient if known is None else known + gradient
    return list(zip(forward, backward, strict=True))


def _time_predictions(
    whole: StageProgram,
    command: ProfileOperators,
    state: Mapping[str, Tensor],
    minibatches: Minibatches,
    loss: Loss | None,
    clock: Clock,
) -> list[float]:
    """Seconds of displacing all weights and moving them back, after an update."""
    (runner,) = _runners([whole], command, state, minibatches, loss, command.method)
    policy = runner.policy
    if not isinstance(policy, Displaced):
        return []
    _one_pass([runner], (0, 0), clock)
    runner.update(1)
    use = WeightUse(1, 1, stashed=1, forward_lead=1)
    seconds = []
    for _ in range(_WARM_UPS + command.repeats):
        begin = clock()
        with policy.forward_weights(use):
            pass
        seconds.append(clock() - begin)
    return seconds[_WARM_UPS:]


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
