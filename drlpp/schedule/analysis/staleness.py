"""How late gradients are, in words: what a user should know before asynchronous training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drlpp.schedule.analysis.samples_needed import samples_needed
from drlpp.schedule.analysis.weight_versions import steady_delay
from drlpp.schedule.kinds.flushed_1f1b import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline


def mean_staleness(pipeline: Pipeline, method: Method) -> float:
    """Return s in steady state, in the mean over the parts of an update, of the latest stage."""
    if method.flushes:
        return 0.0
    return max(_means(pipeline, method))


def _means(pipeline: Pipeline, method: Method) -> list[float]:
    """Return s of every stage in steady state, in the mean over the parts of an update."""
    return [
        parts / method.parts_of_update(len(workers))
        for parts, workers in zip(method.parts_in_between(pipeline), pipeline.stages, strict=True)
    ]


def usual_staleness(method: Method, accelerators: int) -> int:
    """Return the largest s that a method has with a stage on every accelerator."""
    straight = Pipeline.straight(*[1] * accelerators)
    return max(steady_delay(straight, stage, method) for stage in range(accelerators))


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
    mean = _means(pipeline, method)
    if method.policy_facts.updates_all_in_flight:
        text = "gradients are of the weights before the newest, on every stage"
    else:
        where = "on the only stage" if len(most) == 1 else f"on stages 0 to {stages[-1]}"
        text = f"between the forward and the backward of a minibatch {where} come {_series(most)}"
        text += " updates"
        if mean != most:
            text += f" at most, {_series(round(one, 2) for one in mean)} on average"
    needed = [samples_needed(max(mean), method.policy, at_plain_rate=r) for r in (False, True)]
    text += (
        f", which takes some {_range(sorted(needed))} times the samples of plain PyTorch to the "
        "same loss (a decoder of 0.3 million weights, with AdamW, at its own best learning rate "
        "and at plain PyTorch's: docs/results.md)"
    )
    fewer = _microbatches_for_one(max(method.parts_in_between(pipeline)), method, batch_size)
    if max(most) > 1 and fewer is not None:
        text += f"; with microbatches={fewer} it would be one at most"
    return f"{text}; with schedule={FLUSHED_1F1B.name} none, as in plain PyTorch"


def _microbatches_for_one(apart: int, method: Method, batch_size: int) -> int | None:
    """Return the fewest that make s one at most, ``apart`` parts from forward to backward."""
    enough = range(-(-apart // method.accumulate), batch_size + 1)
    return next((number for number in enough if batch_size % number == 0), None)


def _range(numbers: Sequence[float]) -> str:
    """Return the least and the most; one if they look alike."""
    texts = [f"{number:.1f}" for number in numbers]
    return " to ".join(dict.fromkeys(texts))


def _series(numbers: Iterable[float]) -> str:
    *first, last = (f"{number:g}" for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last
