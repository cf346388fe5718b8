"""How late gradients are, in words: what a user should know before asynchronous training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from drlpp.schedule.analysis.samples_needed import samples_needed, samples_of_larger
from drlpp.schedule.analysis.weight_versions import steady_delay
from drlpp.schedule.kinds.flushed_1f1b import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import PIPEOPTIM


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
    needed, by_whom = _needed(max(mean), method.policy)
    text += (
        f", which takes some {_range(needed)} times the samples of plain PyTorch to the same loss "
        f"({by_whom}: docs/methods.md)"
    )
    fewer = _microbatches_for_one(max(method.parts_in_between(pipeline)), method, batch_size)
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
    if method.policy_facts.updates_all_in_flight:
        how = "one update late"
    else:
        how = f"up to {late:.3g} updates late on average"
    needed, by_whom = _needed(late, method.policy)
    worth = _range([minibatches_per_second / factor for factor in reversed(needed)])
    return (
        f"{minibatches_per_second:.1f} minibatches/s here, with gradients {how}, teach as much as "
        f"{worth} minibatches/s of plain PyTorch ({by_whom}: docs/methods.md); drlpp race measures "
        "both on your data"
    )


def _needed(staleness: float, policy: str) -> tuple[list[float], str]:
    """Return what was found with two learning rates, the least first, and in which trainings."""
    rates = (False, True)
    found = [samples_needed(staleness, policy, at_plain_rate=plain) for plain in rates]
    trained = "a decoder of 0.3 million weights"
    if policy == PIPEOPTIM.name:
        found += [samples_of_larger(staleness, at_plain_rate=plain) for plain in rates]
        trained = "decoders of 0.3 and 2.8 million weights"
    by_whom = f"{trained}, with AdamW, at their own best learning rates and at plain PyTorch's"
    return [min(found), max(found)], by_whom


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
