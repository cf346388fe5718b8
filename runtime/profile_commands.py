"""What the workers are told to profile, and the profile that their times make."""

from __future__ import annotations

import pickle
import statistics
from collections.abc import Iterable, Sequence

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
    captured: CapturedModel, method: Method, optimizer: OptimizerSpec, repeats: int
) -> ProfileOperators:
    """Time every operator of a model, ``repeats`` times."""
    each = Placement(
        stages=tuple(
            Stage(operators=(op.id,), accelerators=(op.id,)) for op in captured.graph.operators
        )
    )
    operators = tuple(range(len(captured.graph)))
    together = Placement(stages=(Stage(operators=operators, accelerators=(0,)),))
    (whole,) = cut_stages(captured, together)
    programs = (cut_stages(captured, each), whole, portable(captured.loss))
    return ProfileOperators(pickle.dumps(programs), method, optimizer, repeats)


def profile_of(captured: CapturedModel, times: Sequence[OperatorTimes]) -> Profile:
    """The profile of a model from what one or more workers measured at the same time.

    A pass of a stage costs something besides its operators: c for each of n operators that run as
    stages of their own, once if all are in one stage. So c = (Σ alone − together) / (n − 1), and it
    is taken off every operator's time.
    """
    forward, forward_overhead = _without_overhead(
        [_together(t.forward[op] for t in times) for op in range(len(captured.graph))],
        _together(t.whole_forward for t in times),
    )
    backward, backward_overhead = _without_overhead(
        [_together(t.backward[op] for t in times) for op in range(len(captured.graph))],
        _together(t.whole_backward for t in times),
    )
    weight_bytes = max(times[0].weight_bytes, 1)
    predictions = _together(t.prediction_seconds for t in times)
    return Profile(
        graph=captured.graph,
        device=times[0].device,
        batch_size=captured.task.batch_size,
        operators=tuple(
            OperatorProfile(
                forward_seconds=forward[op],
                backward_seconds=backward[op],
                forward_spread_seconds=_spread(_together(t.forward[op] for t in times)),
                backward_spread_seconds=_spread(_together(t.backward[op] for t in times)),
                kept_bytes=times[0].kept_bytes[op],
            )
            for op in range(len(captured.graph))
        ),
        forward_overhead_seconds=forward_overhead,
        backward_overhead_seconds=backward_overhead,
        update_seconds_per_byte=statistics.median(_together(t.update_seconds for t in times))
        / weight_bytes,
        prediction_seconds_per_byte=statistics.median(predictions) / weight_bytes
        if predictions
        else 0.0,
    )


def _together(seconds: Iterable[Sequence[float]]) -> list[float]:
    return [value for worker in seconds for value in worker]


def _without_overhead(
    alone: Sequence[Sequence[float]], together: Sequence[float]
) -> tuple[list[float], float]:
    """Median seconds of every operator without a pass's overhead, and the overhead."""
    medians = [statistics.median(values) for values in alone]
    whole = statistics.median(together)
    overhead = max(sum(medians) - whole, 0.0) / max(len(medians) - 1, 1)
    without = [max(value - overhead, 0.0) for value in medians]
    # Quicker ones than the overhead would otherwise make the sum too large.
    expected, found = max(whole - overhead, 0.0), sum(without)
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
