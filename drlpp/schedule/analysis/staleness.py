"""How late gradients are, in words: what a user should know before asynchronous training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from drlpp.schedule.analysis.weight_versions import steady_delay
from drlpp.schedule.kinds.flushed_1f1b import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline

_SAMPLES = ((0.0, 1.0), (0.4375, 1.03), (0.875, 1.09), (3.0, 1.48), (7.0, 2.17))
"""Times the minibatches of plain PyTorch to its loss, by staleness: docs/methods.md.

The second is the mean of nine trainings at staleness from 0.375 to 0.5, the third that of nine
from 0.75 to 1: seeds differ by more than these do among themselves. The last two are one training
each.
"""

_SAMPLES_OF_LARGER = ((0.0, 1.0), (0.75, 1.22), (3.0, 1.84))
"""The same of a decoder with ten times the weights: three trainings, and one."""


_BY_WHOM = "decoders of 0.3 and 2.8 million weights"


def mean_staleness(pipeline: Pipeline, method: Method) -> float:
    """Return s in steady state, in the mean over the parts of an update, of the latest stage."""
    if method.flushes:
        return 0.0
    return max(
        parts / method.parts_of_update(len(workers))
        for parts, workers in zip(method.parts_in_between(pipeline), pipeline.stages, strict=True)
    )


def samples_needed(staleness: float) -> float:
    """Return how many times plain PyTorch's samples training takes to the same loss, roughly.

    They are those of a decoder of 0.3 million weights, of which most is known.

    Args:
        staleness: as :func:`mean_staleness` gives it. Between those that were tried, and beyond
            them, lies a straight line.
    """
    return _on_lines(_SAMPLES, staleness)


def samples_of_larger(staleness: float) -> float:
    """Return the same of a decoder of 2.8 million weights."""
    return _on_lines(_SAMPLES_OF_LARGER, staleness)


def _on_lines(points: Sequence[tuple[float, float]], staleness: float) -> float:
    pairs = list(pairwise(points))
    (begin, before), (end, after) = next((p for p in pairs if staleness <= p[1][0]), pairs[-1])
    return before + (after - before) * (staleness - begin) / (end - begin)


def staleness_text(pipeline: Pipeline, method: Method, batch_size: int) -> str | None:
    """Say how many updates come between forward and backward, and what would make them fewer.

    Args:
        pipeline: the stages.
        method: its s is that of the steady state (pipeoptim eq. 4).
        batch_size: samples of a minibatch, which microbatches have to divide.

    Returns:
        One line; None if no update comes between, so that training is as plain PyTorch's.
    """
    stages = range(len(pipeline.stages))
    most = [steady_delay(pipeline, stage, method) for stage in stages]
    if not any(most):
        return None
    where = "on the only stage" if len(most) == 1 else f"on stages 0 to {stages[-1]}"
    text = f"between the forward and the backward of a minibatch {where} come {_series(most)}"
    apart = method.parts_in_between(pipeline)
    mean = [
        parts / method.parts_of_update(len(workers))
        for parts, workers in zip(apart, pipeline.stages, strict=True)
    ]
    text += " updates"
    if mean != most:
        text += f" at most, {_series(round(one, 2) for one in mean)} on average"
    needed = _range(samples_needed(max(mean)), samples_of_larger(max(mean)))
    text += (
        f", which takes some {needed} times the samples of plain PyTorch to the same loss "
        f"({_BY_WHOM}: docs/methods.md)"
    )
    fewer = _microbatches_for_one(max(apart), method, batch_size)
    if max(most) > 1 and fewer is not None:
        text += f"; with microbatches={fewer} it would be one at most"
    return f"{text}; with schedule={FLUSHED_1F1B.name} none, as in plain PyTorch"


def outcome_text(pipeline: Pipeline, method: Method, minibatches_per_second: float) -> str | None:
    """Say what a speed was worth, with gradients as late as this.

    Args:
        pipeline: the stages.
        method: that it trained with.
        minibatches_per_second: its speed.

    Returns:
        One line; None if no update came between, so that a minibatch was worth one of plain
        PyTorch's.
    """
    late = mean_staleness(pipeline, method)
    if not late:
        return None
    worth = _range(
        minibatches_per_second / samples_of_larger(late),
        minibatches_per_second / samples_needed(late),
    )
    return (
        f"{minibatches_per_second:.1f} minibatches/s, the gradients of the latest stage being "
        f"{late:.3g} updates late, are worth some {worth} of plain PyTorch "
        f"({_BY_WHOM}: docs/methods.md); drlpp race measures both on your data"
    )


def _microbatches_for_one(apart: int, method: Method, batch_size: int) -> int | None:
    """Return the fewest that make s one at most, ``apart`` parts from forward to backward."""
    enough = range(-(-apart // method.accumulate), batch_size + 1)
    return next((number for number in enough if batch_size % number == 0), None)


def _range(least: float, most: float) -> str:
    """Return both; one if they look alike."""
    texts = [f"{number:.1f}" for number in (least, most)]
    return " to ".join(dict.fromkeys(texts))


def _series(numbers: Iterable[float]) -> str:
    *first, last = (f"{number:g}" for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last
