"""What the workers are told to profile, and the profile that their times make."""

from __future__ import annotations

import pickle
import statistics
from collections.abc import Callable, Sequence

from drlpp.capture import CapturedModel
from drlpp.cluster import Link
from drlpp.optimizer_spec import OptimizerSpec
from drlpp.placement import Placement, Stage
from drlpp.profile import OperatorProfile, Profile
from drlpp.runtime.commands import LinkTimes, OperatorTimes, ProfileLink, ProfileOperators
from drlpp.runtime.stages import cut_stages, portable
from drlpp.training_options import Method

_SMALL_BYTES, _LARGE_BYTES = 1024, 4 * 1024 * 1024

ALONE = Link(bandwidth_bytes_per_second=1e12)
"""The link of a single worker, which sends nothing."""


def profile_command(
    captured: CapturedModel,
    method: Method,
    optimizer: OptimizerSpec,
    repeats: int,
    name: str,
    workers: Sequence[int],
) -> ProfileOperators:
    """Time every operator of a model on several workers at the same time.

    Args:
        captured: the model.
        method, optimizer: what updates and predictions are timed for.
        repeats: timed passes.
        name: of the workers' group, never used twice.
        workers: that measure.
    """
    each = Placement(
        stages=tuple(
            Stage(operators=(op.id,), accelerators=(op.id,)) for op in captured.graph.operators
        )
    )
    operators = tuple(range(len(captured.graph)))
    together = Placement(stages=(Stage(operators=operators, accelerators=(0,)),))
    (whole,) = cut_stages(captured, together)
    programs = pickle.dumps((cut_stages(captured, each), whole, portable(captured.loss)))
    return ProfileOperators(programs, method, optimizer, repeats, name, tuple(workers))


def profile_of(captured: CapturedModel, times: Sequence[OperatorTimes]) -> Profile:
    """The profile of a model from what one or more workers measured at the same time.

    A pass of a stage costs something besides its operators: c for each of n operators that run as
    stages of their own, once if all are in one stage. So c = (Σ alone − together) / (n − 1), and it
    is taken off every operator's time. So it is with updates of operators that have parameters.
    """
    operators = captured.graph.operators

    def of_operators(which: Callable[[OperatorTimes], list[list[float]]]) -> list[list[float]]:
        return [[value for worker in times for value in which(worker)[op.id]] for op in operators]

    def of_all(which: Callable[[OperatorTimes], list[float]]) -> float:
        values = [value for worker in times for value in which(worker)]
        return statistics.median(values) if values else 0.0

    forward_times, backward_times = (
        of_operators(lambda t: t.forward),
        of_operators(lambda t: t.backward),
    )
    whole_backward, whole_update = (
        of_all(lambda t: t.whole_backward),
        of_all(lambda t: t.whole_update),
    )
    forward, forward_overhead = _without_overhead(forward_times, of_all(lambda t: t.whole_forward))
    backward, backward_overhead = _without_overhead(backward_times, whole_backward)
    updates = [
        values
        for op, values in zip(operators, of_operators(lambda t: t.update), strict=True)
        if op.parameter_bytes
    ]
    _, update_overhead = _without_overhead(updates, whole_update)
    sharing = of_all(lambda t: t.shared_backward) - whole_backward
    sharing += of_all(lambda t: t.shared_update) - whole_update
    weight_bytes = max(captured.graph.parameter_bytes, 1)
    return Profile(
        graph=captured.graph,
        device=times[0].device,
        batch_size=captured.task.batch_size,
        operators=tuple(
            OperatorProfile(
                forward_seconds=forward[op.id],
                backward_seconds=backward[op.id],
                forward_spread_seconds=_spread(forward_times[op.id]),
                backward_spread_seconds=_spread(backward_times[op.id]),
                kept_bytes=times[0].kept_bytes[op.id],
            )
            for op in operators
        ),
        forward_overhead_seconds=forward_overhead,
        backward_overhead_seconds=backward_overhead,
        update_overhead_seconds=update_overhead,
        update_seconds_per_byte=max(whole_update - update_overhead, 0.0) / weight_bytes,
        prediction_seconds_per_byte=of_all(lambda t: t.prediction_seconds) / weight_bytes,
        sharing_seconds_per_byte=max(sharing, 0.0) / weight_bytes,
    )


def _without_overhead(
    alone: Sequence[Sequence[float]], together: float
) -> tuple[list[float], float]:
    """Median seconds of every operator without a pass's overhead, and the overhead."""
    medians = [statistics.median(values) for values in alone]
    overhead = max(sum(medians) - together, 0.0) / max(len(medians) - 1, 1)
    without = [max(value - overhead, 0.0) for value in medians]
    # Quicker ones than the overhead would otherwise make the sum too large.
    expected, found = max(together - overhead, 0.0), sum(without)
    scale = expected / found if found > expected > 0 else 1.0
    return [value * scale for value in without], overhead


def _spread(values: Sequence[float]) -> float:
    """Half of the range of the middle half."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4)
    return (third - first) / 2


def link_command(name: str, repeats: int) -> ProfileLink:
    """Time messages between two workers; they are quick, and scatter more than operators."""
    return ProfileLink(name, (_SMALL_BYTES, _LARGE_BYTES), 5 * repeats)


def link_of(times: LinkTimes) -> Link:
    """Latency of a small message, bandwidth of what a large one takes more."""
    latency = times.seconds[_SMALL_BYTES]
    transfer_seconds = max(times.seconds[_LARGE_BYTES] - latency, 1e-9)
    return Link(bandwidth_bytes_per_second=_LARGE_BYTES / transfer_seconds, latency_seconds=latency)
