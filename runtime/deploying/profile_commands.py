"""The command that profiles operators on workers, and the profile that their times make."""

from __future__ import annotations

import pickle
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress

from drlpp.capturing.blocks import shorten
from drlpp.capturing.capture import CapturedModel
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.errors import InvalidModel
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.hosts.session_hosts import Places
from drlpp.runtime.ipc.protocol import OperatorTimes, ProfileOperators, StageTimes, Transport
from drlpp.runtime.stage.generated_sources import discarded_fx_sources
from drlpp.runtime.stage.stages import StageProgram
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec
from drlpp.specs.parameter_groups import settled

_PARTS = 8
_MICROBATCHES = (4, 2)
"""One of so many equal parts of a minibatch is timed, too."""


def measuring_workers(
    speeds: Sequence[float], places: Places, devices: Sequence[DeviceFacts]
) -> range:
    """Return the workers that measure at the same time: as many as compute together in training.

    They are on the first one's machine, usually the controller's, which others are compared with.
    """
    machine, cores = places.machines[0]
    on_it = sum(name == machine for name, _ in places.machines)
    if min(speeds) < 1:
        return range(on_it)
    return range(min(on_it, computing_at_once(devices[:on_it], len(cores))))


def computing_at_once(devices: Sequence[DeviceFacts], cores: int) -> int:
    """Return how many workers of a machine compute at full speed together: one per GPU, or core."""
    gpus = {device.identity for device in devices if device.type == "cuda"}
    return len(gpus) or cores


@discarded_fx_sources()
def profile_command(
    whole_model: CapturedModel,
    captured: CapturedModel,
    method: Method,
    optimizer: OptimizerSpec,
    repeats: int,
    name: str,
    workers: Sequence[int],
    transport: Transport,
) -> ProfileOperators:
    """Return the command to time every operator of a model on several workers at the same time.

    ``captured`` is the model with fewer blocks, which is timed; the rest as in the command.
    """
    count = len(captured.graph)
    each = cut_stages(captured, _even_cut(count, count))
    parts = cut_stages(captured, _even_cut(count, min(_PARTS, count)))
    (whole,) = cut_stages(captured, _even_cut(count, 1))
    small, microbatches = _microbatch(whole_model, captured)
    programs = pickle.dumps((each, parts, whole, small))
    optimizer = settled(optimizer, captured.trained, captured.aliases)
    return ProfileOperators(
        programs, microbatches, method, optimizer, repeats, name, tuple(workers), transport
    )


def _microbatch(
    whole_model: CapturedModel, captured: CapturedModel
) -> tuple[StageProgram | None, int]:
    """Return what is timed as one stage for a part of a minibatch, and how many parts there are.

    None if minibatches cannot be divided.
    """
    for parts in _MICROBATCHES:
        if captured.task.batch_size % parts == 0:
            with suppress(InvalidModel):
                divided = shorten(whole_model.microbatch(parts)).captured
                # What is equal with many samples, may differ with few, or the other way round.
                if divided.graph.fingerprint == captured.graph.fingerprint:
                    return cut_stages(divided, _even_cut(len(divided.graph), 1))[0], parts
    return None, 1


def _even_cut(operators: int, stages: int) -> Placement:
    """Cut the graph into runs of consecutive operators, with about as many in each."""
    return Placement.straight([1] * operators, range(stages))


def profile_of(captured: CapturedModel, times: Sequence[OperatorTimes]) -> Profile:
    """Return the profile of a model from what one or more workers measured at the same time.

    A pass of a stage costs c besides its operators. In n parts the model takes n of them, as a
    whole one: c = (parts − whole) / (n − 1). What is left of the whole is divided among operators
    in proportion to what they took alone, without what each took too long by being alone. So it is
    with updates, where parts without parameters make none.
    """
    operators = captured.graph.operators
    parts = _even_cut(len(operators), len(times[0].parts.forward)).stages
    updated = sum(any(operators[op].parameter_bytes for op in part.operators) for part in parts)
    forward, forward_overhead = _divided(times, lambda t: t.forward, len(parts))
    backward, backward_overhead = _divided(times, lambda t: t.backward, len(parts))
    _, update_overhead = _divided(times, lambda t: t.update, updated)
    update = _total(times, lambda t: t.whole.update) - update_overhead
    sharing = sum(
        _total(times, shared) - _total(times, whole)
        for shared, whole in (
            (lambda t: t.shared.backward, lambda t: t.whole.backward),
            (lambda t: t.shared.update, lambda t: t.whole.update),
        )
    )
    weighted = [[op for op in part.operators if operators[op].parameter_bytes] for part in parts]
    fixed_share = _fixed_share(times, forward_overhead + backward_overhead)
    split_seconds, weight_share = _halves(times, weighted, backward, backward_overhead)
    predictions = [value for t in times for value in t.prediction_seconds]
    prediction = statistics.median(predictions) if predictions else 0.0
    weight_bytes = max(captured.graph.parameter_bytes, 1)
    return Profile(
        graph=captured.graph,
        device=times[0].device,
        batch_size=captured.task.batch_size,
        operators=tuple(
            OperatorProfile(
                forward_seconds=forward[op.id],
                backward_seconds=backward[op.id],
                forward_spread_seconds=_spread(
                    [value for t in times for value in t.operators.forward[op.id]]
                ),
                backward_spread_seconds=_spread(
                    [value for t in times for value in t.operators.backward[op.id]]
                ),
                kept_bytes=times[0].kept_bytes[op.id],
            )
            for op in operators
        ),
        forward_overhead_seconds=forward_overhead,
        backward_overhead_seconds=backward_overhead,
        fixed_share=fixed_share,
        split_seconds=split_seconds,
        weight_share=weight_share,
        update_overhead_seconds=update_overhead,
        update_seconds_per_byte=update / weight_bytes,
        prediction_seconds_per_byte=prediction / weight_bytes,
        sharing_seconds_per_byte=max(sharing, 0.0) / weight_bytes,
    )


def _total(
    times: Sequence[OperatorTimes], which: Callable[[OperatorTimes], list[list[float]]]
) -> float:
    """Return the median over workers and repetitions of the sum over all stages."""
    sums = [sum(stages) for t in times for stages in zip(*which(t), strict=True)]
    return statistics.median(sums)


def _divided(
    times: Sequence[OperatorTimes], which: Callable[[StageTimes], list[list[float]]], number: int
) -> tuple[list[float], float]:
    """Return seconds of every operator, and what a stage takes besides, from ``number`` parts."""
    whole = _total(times, lambda t: which(t.whole))
    parts = _total(times, lambda t: which(t.parts))
    # When other programs disturb the parts, they can seem to cost more than there is.
    overhead = min(max(parts - whole, 0.0) / max(number - 1, 1), whole)
    alone = [
        statistics.median([value for worker in operator for value in worker])
        for operator in zip(*(which(t.operators) for t in times), strict=True)
    ]
    left = whole - overhead
    too_long = max(sum(alone) - left, 0.0) / len(alone)
    shares = [max(seconds - too_long, 0.0) for seconds in alone]
    scale = left / sum(shares) if sum(shares) else 0.0
    return [share * scale for share in shares], overhead


def _fixed_share(times: Sequence[OperatorTimes], overhead: float) -> float:
    """Return the part of a minibatch's passes that a microbatch takes as well, see the profile.

    With it, one of M microbatches takes T·(f + (1 − f)/M) of a minibatch's T seconds.

    Args:
        times: of the whole model on minibatches, and on microbatches.
        overhead: of a forward and a backward, whatever is computed.
    """
    small = [time.microbatch for time in times if time.microbatch is not None]
    if not small:
        return 0.0

    def seconds(stages: Sequence[StageTimes]) -> float:
        passes = [
            forward + backward
            for stage in stages
            for forward, backward in zip(stage.forward[0], stage.backward[0], strict=True)
        ]
        return max(statistics.median(passes) - overhead, 0.0)

    whole, part = seconds([time.whole for time in times]), seconds(small)
    parts = times[0].microbatches
    share = (parts * part / whole - 1) / (parts - 1) if whole else 0.0
    return min(max(share, 0.0), 1.0)


def _halves(
    times: Sequence[OperatorTimes],
    weighted: Sequence[Sequence[int]],
    backward: Sequence[float],
    overhead: float,
) -> tuple[float, float]:
    """Return what splitting a backward takes for an operator with weights, and the second half.

    The second half as a part of the backward of operators with weights.

    Args:
        times: of the parts, with whole backwards and with halves.
        weighted: the operators with weights of every part. The first part has nothing to do in a
            first half, and one without weights nothing in a second.
        backward: seconds of every operator.
        overhead: of a backward, which each half has.
    """
    chosen = [part for part, found in enumerate(weighted) if part and found]
    if not chosen:
        return 0.0, 0.5

    def seconds(which: Callable[[OperatorTimes], list[list[float]]]) -> float:
        return sum(
            statistics.median([value for t in times for value in which(t)[part]]) for part in chosen
        )

    count = sum(len(weighted[part]) for part in chosen)
    whole = seconds(lambda t: t.parts.backward)
    second = seconds(lambda t: t.halves.backward_weight)
    beyond = seconds(lambda t: t.halves.backward) + second - whole - len(chosen) * overhead
    split = max(beyond, 0.0) / count
    computed = second - len(chosen) * overhead - split * count / 2
    of_weighted = sum(backward[op] for part in chosen for op in weighted[part])
    share = computed / of_weighted if of_weighted else 0.5
    return split, min(max(share, 0.0), 1.0)


def _spread(values: Sequence[float]) -> float:
    """Return half of the range of the middle half."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4)
    return (third - first) / 2
