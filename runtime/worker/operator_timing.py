"""Timing operators on the workers, for planners and the simulator.

Every operator runs as a stage of its own, then the model in a few parts, then the whole. The first
says how the time is divided among operators, the last how much it is. The whole runs again on a
microbatch, which takes more than its share of a minibatch's time. A model in n parts takes
longer than the whole: what a stage's passes and updates cost besides their operators is found by
comparing the two, what splitting backwards costs by training the parts with backwards in halves,
and what sharing gradients costs by training the whole as a replica does.

Every pass is repeated, less often where passes take long: they spread less then.

On a CPU the clock is the processor time of the worker's thread, which other processes on the
machine do not stretch. On other devices it is the time until the device has finished.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from drlpp.runtime.device.devices import Accelerator
from drlpp.runtime.device.retargeting import move_graph_to_device
from drlpp.runtime.ipc.protocol import (
    OperatorTimes,
    ProfileOperators,
    RunPlan,
    StageTimes,
    WeightPlan,
    Working,
)
from drlpp.runtime.stage.data.minibatches import Minibatches
from drlpp.runtime.stage.generated_sources import discarded_fx_sources
from drlpp.runtime.stage.passes.passes import Received
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.stage.stages import StageOutput, StageProgram
from drlpp.schedule.kinds.gpipe import GPIPE
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC, WeightUse

_WARM_UPS = 3
_FEWEST_REPEATS = 5
_ENOUGH_SECONDS = 1.0
"""Of repeated passes, after which no more than the fewest are made."""
_SIGN_INTERVAL_SECONDS = 0.25

Clock = Callable[[], float]


def time_operators(
    command: ProfileOperators,
    state: Mapping[str, Tensor],
    minibatches: Minibatches,
    accelerator: Accelerator,
    speed: float = 1.0,
    replicas: dist.ProcessGroup | None = None,
    tell: Callable[[Working], None] = lambda _: None,
) -> OperatorTimes:
    """Train the model in stages of one operator, in parts, as a whole, and as a replica.

    The loss is counted with the last operator, as it is computed where that is.

    Args:
        command: what to run.
        state: parameters and buffers, by name.
        minibatches: inputs and targets.
        accelerator: to measure.
        speed: of this worker; a slower one sleeps after every pass of a part or of the whole, as it
            does when it trains, and finds its caches as it will find them then.
        replicas: the group of the workers that measure at the same time, to sum gradients with.
        tell: called now and then, between what is timed.
    """
    with discarded_fx_sources():
        each, parts, whole, small = pickle.loads(command.programs)
    device = accelerator.device
    smaller = [] if small is None else [small]
    for program in (*each, *parts, whole, *smaller):
        for graph in program.graphs:
            move_graph_to_device(graph, device)
    minibatches = minibatches.on(device)
    clock = _clock(accelerator)
    on_pass = SignsOfLife(tell).now_and_then
    build = partial(_runners, command, state, device, minibatches=minibatches)

    def train(
        programs: Sequence[StageProgram],
        rest: float,
        group: dist.ProcessGroup | None = None,
        *,
        in_halves: bool = False,
        microbatches: int = 1,
        passes: Iterable[int] | None = None,
    ) -> StageTimes:
        data = replace(minibatches, microbatches=microbatches)
        runners = build(programs, replicas=group, minibatches=data)
        stopwatch = _Stopwatch(clock, rest, on_pass)
        passes = timed_passes(command.repeats) if passes is None else passes
        return _train(runners, passes, stopwatch, in_halves=in_halves)

    runners = build(each)
    kept = _Kept(runners, minibatches.inputs((0, 0)))
    stopwatch = _Stopwatch(clock, 1.0, on_pass)
    operators = _train(runners, timed_passes(command.repeats), stopwatch, kept)
    del runners
    together = train([whole], speed)
    shared = together
    if replicas is not None:
        equal = _agreed(len(together.forward[0]), replicas, device)
        shared = train([whole], speed, replicas, passes=range(_WARM_UPS + equal))
    return OperatorTimes(
        device=accelerator.facts.name,
        operators=operators,
        parts=train(parts, speed),
        halves=train(parts, speed, in_halves=True),
        whole=together,
        microbatch=train(smaller, speed, microbatches=command.microbatches) if smaller else None,
        microbatches=command.microbatches,
        shared=shared,
        kept_bytes=kept.bytes_,
        prediction_seconds=_time_predictions(
            build([whole], command.method)[0], _Stopwatch(clock, speed, on_pass), command.repeats
        ),
    )


@dataclass(frozen=True)
class _Stopwatch:
    """Times things, and sleeps as long as a worker of this speed does after them."""

    clock: Clock
    speed: float
    on_pass: Callable[[], None]

    def seconds(self, action: Callable[[], object]) -> float:
        begin = self.clock()
        action()
        return self.clock() - begin

    def rest(self, seconds: float) -> None:
        self.on_pass()
        if self.speed < 1:
            time.sleep(seconds / self.speed - seconds)


class SignsOfLife:
    """Signs between passes; without them the controller would take the worker for one that hung."""

    def __init__(self, tell: Callable[[Working], None]) -> None:
        self._tell = tell
        self._last = time.monotonic()

    def now_and_then(self) -> None:
        """Send a sign, unless that has been done a moment ago."""
        if time.monotonic() - self._last > _SIGN_INTERVAL_SECONDS:
            self._last = time.monotonic()
            self._tell(Working())


def timed_passes(repeats: int) -> Iterator[int]:
    """Yield the numbers of passes: those that warm up, and as many as there are to be timed."""
    yield from range(_WARM_UPS)
    begin = time.monotonic()
    for repeat in range(repeats):
        if repeat >= _FEWEST_REPEATS and time.monotonic() - begin > _ENOUGH_SECONDS:
            return
        yield _WARM_UPS + repeat


def _agreed(repeats: int, replicas: dist.ProcessGroup, device: torch.device) -> int:
    """Return the fewest repeats of any replica: gradients are summed as often by all of them."""
    fewest = torch.tensor([repeats], device=device)
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MIN)
    replicas.allreduce([fewest], options).wait()
    return int(fewest)


def _clock(accelerator: Accelerator) -> Clock:
    if accelerator.device.type == "cpu":
        return time.thread_time

    def after_all_work() -> float:
        accelerator.synchronize()
        return time.perf_counter()

    return after_all_work


def _runners(
    command: ProfileOperators,
    state: Mapping[str, Tensor],
    device: torch.device,
    programs: Sequence[StageProgram],
    method: Method | None = None,
    replicas: dist.ProcessGroup | None = None,
    *,
    minibatches: Minibatches,
) -> list[StageRunner]:
    """Build runners of stages; those of ``replicas`` sum their gradients."""
    runners = [
        StageRunner(
            program=program,
            state=state,
            method=method or Method(schedule=GPIPE.name, policy=SYNC.name),
            optimizer=command.optimizer,
            delay=0 if method is None else 1,
            minibatches=minibatches,
            sum_over_replicas=None
            if replicas is None
            else lambda tensor: replicas.allreduce([tensor]),
            device=device,
        )
        for program in programs
    ]
    passes = _WARM_UPS + command.repeats
    for runner in runners:
        uses = {(number, 0): WeightUse(0, 0, stashed=0) for number in range(passes)}
        rates = [float(command.optimizer.value("lr"))]
        runner.begin(RunPlan(WeightPlan(uses, rates, shared=replicas is not None)))
    return runners


class _Kept:
    """Counts what the forward of every operator keeps for the backward, each storage once.

    What an operator received was made, and is counted, elsewhere, unless only its reader keeps it.
    """

    def __init__(self, runners: Sequence[StageRunner], inputs: Sequence[Tensor]) -> None:
        self.bytes_ = [0] * len(runners)
        held = [t for runner in runners for t in (*runner.weights.newest, *runner.buffers.values())]
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


def _train(
    runners: Sequence[StageRunner],
    passes: Iterable[int],
    stopwatch: _Stopwatch,
    kept: _Kept | None = None,
    *,
    in_halves: bool = False,
) -> StageTimes:
    """Train stages in a row on minibatches; what is kept is counted in the first."""
    none: list[list[list[float]]] = [[[] for _ in runners] for _ in range(4)]
    times = StageTimes(*none)
    for number in passes:
        counted = kept if number == 0 else None
        found = _train_one(runners, number, stopwatch, counted, in_halves=in_halves)
        for stage, seconds in enumerate(found):
            if number >= _WARM_UPS:
                kinds = times.forward, times.backward, times.backward_weight, times.update
                for kind, value in zip(kinds, seconds, strict=True):
                    kind[stage].append(value)
    return times


def _train_one(
    runners: Sequence[StageRunner],
    number: int,
    stopwatch: _Stopwatch,
    kept: _Kept | None,
    *,
    in_halves: bool = False,
) -> list[tuple[float, float, float, float]]:
    """Return the seconds of every stage for one minibatch.

    Of its forward, its backward or the first half of it, the second half, and its update.
    """
    part = (number, 0)
    outputs: list[Sequence[Tensor]] = []
    forwards, updates = [], []
    backwards, second_halves = [0.0] * len(runners), [0.0] * len(runners)

    def forward(stage: int, runner: StageRunner, received: Received) -> None:
        if kept is None:
            outputs.append(runner.forward(part, received))
        else:
            outputs.append(kept.forward(stage, runner, part, received))

    for stage, runner in enumerate(runners):
        received = {
            StageOutput(source, index): outputs[source][index].detach()
            for source, contents in runner.program.receives.items()
            for index, _ in contents
        }
        forwards.append(stopwatch.seconds(partial(forward, stage, runner, received)))
        stopwatch.rest(forwards[-1])
    gradients: list[dict[int, Tensor]] = [{} for _ in runners]
    found: dict[StageOutput, Tensor] = {}

    def backward(stage: int) -> None:
        found.clear()
        if in_halves:
            found.update(runners[stage].backward_input(part, gradients[stage]))
        else:
            found.update(runners[stage].backward(part, gradients[stage], last=True))

    for stage in reversed(range(len(runners))):
        backwards[stage] = stopwatch.seconds(partial(backward, stage))
        stopwatch.rest(backwards[stage])
        if in_halves:
            second_half = partial(runners[stage].backward_weight, part)
            second_halves[stage] = stopwatch.seconds(second_half)
            stopwatch.rest(second_halves[stage])
        for key, gradient in found.items():
            known = gradients[key.stage].get(key.index)
            gradients[key.stage][key.index] = gradient if known is None else known + gradient
    for runner in runners:
        runner.finish_sum()
        updates.append(stopwatch.seconds(partial(runner.update, 1)))
        stopwatch.rest(updates[-1])
    return list(zip(forwards, backwards, second_halves, updates, strict=True))


def _time_predictions(runner: StageRunner, stopwatch: _Stopwatch, repeats: int) -> list[float]:
    """Return seconds of displacing all weights and moving them back, after an update."""
    policies = [policy for policy in runner.weights.policies if policy.predicts]
    if not policies:
        return []
    _train_one([runner], 0, stopwatch, None)
    use = WeightUse(1, 1, stashed=1, forward_lead=1)

    def displace() -> None:
        with ExitStack() as displaced:
            for policy in policies:
                displaced.enter_context(policy.forward_weights(use))

    seconds = []
    for _ in timed_passes(repeats):
        seconds.append(stopwatch.seconds(displace))
        stopwatch.rest(seconds[-1])
    return seconds[_WARM_UPS:]
