"""Timing operators on the workers, for planners and the simulator.

The model is trained in several ways, as ``drlpp.runtime.session.profiling`` asks and explains.
Every pass is repeated, less often where passes take long: they spread less then.

On a CPU the clock is the processor time of the worker's thread, which other processes on the
machine do not stretch. On other devices it is the time until the device has finished.
"""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from drlpp.runtime.comm.connections import Connections
from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.device.retargeting import move_graph_to_device
from drlpp.runtime.ipc.protocol import (
    OperatorTimes,
    ProfileOperators,
    RunPlan,
    WeightPlan,
    Working,
)
from drlpp.runtime.stage.graph_code import discarded_fx_sources
from drlpp.runtime.stage.minibatches import Minibatches
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.stage.stages import StageOutput, StageProgram
from drlpp.runtime.stage.weight_group import OWN
from drlpp.runtime.weights.displacements import PredictedWeights
from drlpp.schedule.kinds.alternating import GPIPE
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC, WeightUse
from drlpp.specs.batches import tensors_in

WHOLE, OPERATORS = "whole", "operators"
"""The training whose predictions of weights are timed, and that whose kept bytes are counted."""

FORWARD, BACKWARD, SECOND_HALF, UPDATE = "forward", "backward", "second half", "update"

_WARM_UPS = 3
_FEWEST_REPEATS = 5
_ENOUGH_SECONDS = 1.0
"""Of repeated passes, after which no more than the fewest are made."""
_SIGN_INTERVAL_SECONDS = 0.25

Result = TypeVar("Result")


@dataclass(frozen=True)
class TimedTraining:
    """A way to train a model that a profile wants to know the seconds of.

    The loss is counted with the last stage, as it is computed where that is.

    Attributes:
        programs: the stages, performed in a row on one worker.
        microbatches: parts of a minibatch, one of which is trained on.
        in_halves: whether backwards come in halves.
        shared: whether gradients are summed over all workers that measure.
    """

    programs: tuple[StageProgram, ...]
    microbatches: int = 1
    in_halves: bool = False
    shared: bool = False


def time_operators(
    command: ProfileOperators,
    state: Mapping[str, Tensor],
    minibatches: Minibatches,
    accelerator: Accelerator,
    speed: float,
    connections: Connections,
    tell: Callable[[Working], None],
) -> OperatorTimes:
    """Train the model in all ways that a profile wants.

    A slower worker sleeps after every pass, of operators alone excepted, as it does when it trains,
    and finds its caches as it will find them then.
    """
    device = accelerator.device
    trainings: Mapping[str, TimedTraining]
    with discarded_fx_sources():
        trainings = pickle.loads(command.trainings)
        # Several trainings have the same stages.
        programs = {id(p): p for t in trainings.values() for p in t.programs}
        for graph in (graph for program in programs.values() for graph in program.graphs):
            move_graph_to_device(graph, device)
    minibatches = minibatches.on(device)

    def built(training: TimedTraining, **different: Any) -> list[StageRunner]:
        usual: dict[str, Any] = {
            "state": state,
            "method": Method(schedule=GPIPE.name, policy=SYNC.name),
            "optimizer": command.optimizer,
            "delays": {OWN: 0},
            "minibatches": replace(minibatches, microbatches=training.microbatches),
            "device": device,
        }
        runners = [
            StageRunner(program=program, **(usual | different)) for program in training.programs
        ]
        for runner in runners:
            passes = range(_WARM_UPS + command.repeats)
            uses = {(number, 0): WeightUse(0, 0, stashed=0) for number in passes}
            rates = [command.optimizer.rate]
            runner.begin(RunPlan({OWN: WeightPlan(uses, rates, shared=training.shared)}))
        return runners

    kept_bytes: list[int] = []
    found: dict[tuple[str, str], list[list[float]]] = {}
    for name, training in trainings.items():
        alone = name == OPERATORS
        stopwatch = _Stopwatch(accelerator, 1.0 if alone else speed, tell)
        passes: Iterable[int] = timed_passes(command.repeats)
        shared: dict[str, Any] = {}
        if training.shared:
            passes = range(_WARM_UPS + connections.fewest(len(found[WHOLE, FORWARD][0])))
            shared = {"sum_over_replicas": connections.start_sum}
        runners = built(training, **shared)
        kept = _Kept(runners, tensors_in(minibatches.samples)) if alone else None
        kinds = FORWARD, BACKWARD, SECOND_HALF, UPDATE
        found |= {(name, kind): [[] for _ in runners] for kind in kinds}
        for number in passes:
            counting = kept if number == 0 else None
            for kind, stage, seconds in _minibatch(
                runners, number, stopwatch, counting, in_halves=training.in_halves
            ):
                if number >= _WARM_UPS:
                    found[name, kind][stage].append(seconds)
        kept_bytes = kept.bytes_ if kept else kept_bytes
        del runners, kept
    (runner,) = built(trainings[WHOLE], method=command.method, delays={OWN: 1})
    predictions = _time_predictions(
        runner, _Stopwatch(accelerator, speed, tell), timed_passes(command.repeats)
    )
    return OperatorTimes(accelerator.facts.name, found, kept_bytes, predictions)


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
