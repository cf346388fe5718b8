"""Timing operators on the workers, for planners and the simulator.

The model is trained in several ways, as ``drlpp.runtime.session.profiling`` asks and explains.
Every pass is repeated, less often where passes take long: they spread less then.

On a CPU the clock is the processor time of the worker's thread, which other processes on the
machine do not stretch. On other devices it is the time until the device has finished.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from drlpp.runtime.comm.connections import Connections
from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.ipc.protocol import RunPlan, TimeTraining, TrainingTimes, WeightPlan, Working
from drlpp.runtime.stage.minibatches import Minibatches
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.stage.stages import StageOutput, StageProgram
from drlpp.runtime.stage.weight_group import OWN
from drlpp.runtime.weights.displacements import PredictedWeights
from drlpp.schedule.kinds.alternating import GPIPE
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC, WeightUse
from drlpp.specs.batches import tensors_in

FORWARD, BACKWARD, SECOND_HALF, UPDATE = "forward", "backward", "second half", "update"

_WARM_UPS = 3
_FEWEST_REPEATS = 5
_ENOUGH_SECONDS = 1.0
"""Of repeated passes, after which no more than the fewest are made."""
_SIGN_INTERVAL_SECONDS = 0.25

Result = TypeVar("Result")


def time_training(
    command: TimeTraining,
    programs: Sequence[StageProgram],
    state: Mapping[str, Tensor],
    minibatches: Minibatches,
    accelerator: Accelerator,
    speed: float,
    connections: Connections | None,
    tell: Callable[[Working], None],
) -> TrainingTimes:
    """Train the model as a profile wants.

    A slower worker sleeps after every pass, of operators alone excepted, as it does when it trains,
    and finds its caches as it will find them then.
    """
    device = accelerator.device
    minibatches = replace(minibatches.on(device), microbatches=command.microbatches)
    stopwatch = _Stopwatch(accelerator, 1.0 if command.alone else speed, tell)

    def built(method: Method, delay: int) -> list[StageRunner]:
        runners = [
            StageRunner(
                program=program,
                state=state,
                method=method,
                optimizer=command.optimizer,
                delays={OWN: delay},
                minibatches=minibatches,
                device=device,
                sum_over_replicas=connections.start_sum if connections else None,
            )
            for program in programs
        ]
        for runner in runners:
            passes = range(_WARM_UPS + command.repeats)
            uses = {(number, 0): WeightUse(0, 0, stashed=0) for number in passes}
            rates = [command.optimizer.rate]
            plan = WeightPlan(uses, rates, shared=connections is not None)
            runner.begin(RunPlan({OWN: plan}))
        return runners

    # All that sum gradients do so equally often.
    passes: Iterable[int] = range(_WARM_UPS + command.repeats)
    if connections is None:
        passes = timed_passes(command.repeats)
    runners = built(Method(schedule=GPIPE.name, policy=SYNC.name), 0)
    kept = _Kept(runners, tensors_in(minibatches.samples)) if command.alone else None
    kinds = FORWARD, BACKWARD, SECOND_HALF, UPDATE
    found: dict[str, list[list[float]]] = {kind: [[] for _ in runners] for kind in kinds}
    for number in passes:
        counting = kept if number == 0 else None
        for kind, stage, seconds in _minibatch(
            runners, number, stopwatch, counting, in_halves=command.in_halves
        ):
            if number >= _WARM_UPS:
                found[kind][stage].append(seconds)
    bytes_, predictions = kept.bytes_ if kept else [], list[float]()
    # Or two models would be held at once.
    del runners, kept
    if command.method is not None:
        (runner,) = built(command.method, 1)
        predictions = _time_predictions(runner, stopwatch, timed_passes(command.repeats))
    return TrainingTimes(accelerator.facts.name, found, bytes_, predictions)


class _Stopwatch:
    """Times things, and sleeps as long as a worker of this speed does after them.

    It gives signs of life; without them the controller would take the worker for one that hung.
    """

    def __init__(
        self, accelerator: Accelerator, speed: float, tell: Callable[[Working], None]
    ) -> None:
        self._accelerator = accelerator
        self._speed = speed
        self._tell = tell
        self._told = time.monotonic()

    def time(self, action: Callable[[], Result]) -> tuple[Result, float]:
        """Return what an action returns, and its seconds."""
        begin = self._accelerator.seconds()
        found = action()
        seconds = self._accelerator.seconds() - begin
        if time.monotonic() - self._told > _SIGN_INTERVAL_SECONDS:
            self._told = time.monotonic()
            self._tell(Working())
        if self._speed < 1:
            time.sleep(seconds / self._speed - seconds)
        return found, seconds


def timed_passes(repeats: int) -> Iterator[int]:
    """Yield the numbers of passes: those that warm up, and as many as there are to be timed."""
    yield from range(_WARM_UPS)
    begin = time.monotonic()
    for repeat in range(repeats):
        if repeat >= _FEWEST_REPEATS and time.monotonic() - begin > _ENOUGH_SECONDS:
            return
        yield _WARM_UPS + repeat


class _Kept:
    """Counts what the forward of every operator keeps for the backward, each storage once.

    What an operator received was made, and is counted, elsewhere, unless only its reader keeps it.
    """

    def __init__(self, runners: Sequence[StageRunner], inputs: Sequence[Tensor]) -> None:
        self.bytes_ = [0] * len(runners)
        held = [t for runner in runners for t in (*runner.weights.newest, *runner.buffers.values())]
        self._known = {tensor.untyped_storage().data_ptr() for tensor in (*held, *inputs)}
        self._alive: list[Tensor] = []

    @contextmanager
    def counting(self, stage: int) -> Iterator[None]:
        """Count what a forward inside keeps."""

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in self._known:
                self._known.add(storage.data_ptr())
                # As long as it lives, no other storage gets its address.
                self._alive.append(tensor.detach())
                self.bytes_[stage] += storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            yield


def _minibatch(
    runners: Sequence[StageRunner],
    number: int,
    stopwatch: _Stopwatch,
    kept: _Kept | None = None,
    *,
    in_halves: bool = False,
) -> Iterator[tuple[str, int, float]]:
    """Train stages in a row on a minibatch; yield what was done, its stage, and the seconds."""
    part = (number, 0)
    outputs: list[Mapping[int, Tensor]] = []
    for stage, runner in enumerate(runners):
        received = {
            StageOutput(source, index): outputs[source][index].detach()
            for source, contents in runner.program.receives.items()
            for index, _ in contents
        }
        with kept.counting(stage) if kept else nullcontext():
            output, seconds = stopwatch.time(partial(runner.forward, part, received))
        outputs.append(output)
        yield FORWARD, stage, seconds
    gradients: list[dict[int, Tensor]] = [{} for _ in runners]
    for stage, runner in reversed([*enumerate(runners)]):
        backward = runner.backward_input if in_halves else partial(runner.backward, last=True)
        found, seconds = stopwatch.time(partial(backward, part, gradients[stage]))
        yield BACKWARD, stage, seconds
        if in_halves:
            yield SECOND_HALF, stage, stopwatch.time(partial(runner.backward_weight, part))[1]
        for key, gradient in found.items():
            known = gradients[key.stage].get(key.index)
            gradients[key.stage][key.index] = gradient if known is None else known + gradient
    for stage, runner in enumerate(runners):
        runner.weights.gradients[OWN].finish_sum()
        yield UPDATE, stage, stopwatch.time(partial(runner.update, 1))[1]


def _time_predictions(
    runner: StageRunner, stopwatch: _Stopwatch, passes: Iterable[int]
) -> list[float]:
    """Return seconds of displacing all weights and moving them back, after an update."""
    policies = [p for p in runner.weights.policies if isinstance(p, PredictedWeights)]
    if not policies:
        return []
    deque(_minibatch([runner], 0, stopwatch), maxlen=0)
    use = WeightUse(1, 1, stashed=1, forward_lead=1)

    def displace() -> None:
        with ExitStack() as displaced:
            for policy in policies:
                displaced.enter_context(policy.lent(use))

    return [stopwatch.time(displace)[1] for _ in passes][_WARM_UPS:]
