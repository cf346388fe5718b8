"""How late gradients are, what that costs, and what a user should know before training with it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from drlpp.schedule.analysis.weight_versions import steady_delays
from drlpp.schedule.kinds.alternating import FLUSHED_1F1B
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.weight_policies import PIPEOPTIM, STASH
from drlpp.specs.optimizer_spec import OptimizerSpec

# Points are (staleness, samples to the same loss divided by those of plain PyTorch), of a policy at
# its own best learning rate, with AdamW (docs/results.md): PipeOptim with decoders of 2.7 million
# weights, all others with one of 0.3 million, where PipeOptim's were 1.48 at a staleness of 3.
_MEASURED = {
    "pipeoptim": ((0.0, 1.0), (0.75, 1.17), (1.5, 1.2), (3.0, 1.77)),
    "stash": ((0.0, 1.0), (1.0, 1.18), (3.0, 1.97), (7.0, 2.93)),
    "2bw": ((0.0, 1.59), (1.0, 1.59)),
    "vanilla": ((0.0, 1.0), (1.0, 1.18), (3.0, 1.81), (7.0, 2.81)),
    "spectrain": ((0.0, 1.0), (1.0, 1.24), (3.0, 2.09), (7.0, 2.72)),
    "xpipe": ((0.0, 1.0), (1.0, 1.06), (3.0, 1.32), (7.0, 1.95)),
    "last-step": ((0.0, 1.0), (1.0, 1.07), (3.0, 1.50), (7.0, 2.16)),
    "pipemare": ((0.0, 1.0), (1.0, 1.15), (3.0, 1.70), (7.0, 2.36)),
}

_LARGER = (1.77 - 1) / (1.48 - 1)
"""What lateness costs more with ten times the weights, by PipeOptim over whole minibatches."""


_OF_NADAM, _OF_MUON = 0.3, 0.5
"""What lateness costs with optimizers that tolerate it, of what it does with AdamW: NAdam whose
momentum looks far ahead, and Muon, by PipeDream's stashing (docs/results.md)."""

_LOOKS_AHEAD = 0.99


def _share_of_lateness(optimizer: OptimizerSpec | None) -> float:
    """Return what lateness costs with an optimizer, of what it costs with AdamW."""
    if optimizer is None or optimizer.name not in ("nadam", "muon"):
        return 1.0
    if optimizer.name == "muon":
        return _OF_MUON
    betas = optimizer.options.get("betas")
    looks_ahead = isinstance(betas, list) and (betas[0] or 0.0) >= _LOOKS_AHEAD
    return _OF_NADAM if looks_ahead else 1.0


def samples_needed(
    staleness: float, policy: str = PIPEOPTIM.name, optimizer: OptimizerSpec | None = None
) -> float:
    """Return how many times the samples of plain PyTorch training takes to the same loss, roughly.

    Args:
        staleness: as :func:`mean_staleness` gives it. Between those that were tried, and beyond
            them, lies a straight line.
        policy: the weight policy; one that was not tried counts as PipeDream's stashing.
        optimizer: one that was not tried, or is not known, counts as AdamW.
    """
    pairs = list(pairwise(_MEASURED.get(policy, _MEASURED[STASH.name])))
    (begin, before), (end, after) = next((p for p in pairs if staleness <= p[1][0]), pairs[-1])
    needed = before + (after - before) * (staleness - begin) / (end - begin)
    larger = 1.0 if policy == PIPEOPTIM.name else _LARGER
    return 1 + _share_of_lateness(optimizer) * larger * (needed - 1)


def samples_factor(
    pipeline: Pipeline, method: Method, optimizer: OptimizerSpec | None = None
) -> float:
    """Return how many times plain PyTorch's samples a method takes to the same loss, roughly."""
    late = mean_staleness(pipeline, method)
    # Gradients of 2BW are late on a single stage, too.
    is_late = late or method.policy_facts.updates_all_in_flight
    return samples_needed(late, method.policy, optimizer) if is_late else 1.0


def mean_staleness(pipeline: Pipeline, method: Method) -> float:
    """Return s in steady state, in the mean over the parts of an update, of the latest stage."""
    return 0.0 if method.flushes else max(_means(pipeline, method))


def _means(pipeline: Pipeline, method: Method) -> list[float]:
    """Return s of every stage in steady state, in the mean over the parts of an update."""
    return [
        parts / method.parts_of_update(len(workers))
        for parts, workers in zip(method.parts_in_between(pipeline), pipeline.stages, strict=True)
    ]


def usual_staleness(method: Method, accelerators: int) -> int:
    """Return the largest s that a method has with a stage on every accelerator."""
    straight = Pipeline.straight(*[1] * accelerators)
    return max(steady_delays(straight, method))


def staleness_text(
    pipeline: Pipeline, method: Method, batch_size: int, optimizer: OptimizerSpec | None = None
) -> str | None:
    """Say how many updates come between forward and backward, and what would make them fewer.

    Args:
        pipeline: the stages.
        method: its s is that of the steady state (pipeoptim eq. 4).
        batch_size: samples of a minibatch, which microbatches have to divide.
        optimizer: as in :func:`samples_needed`.

    Returns:
        One line; None if no update comes between, so that training is as plain PyTorch's.
    """
    most = steady_delays(pipeline, method)
    if not any(most):
        return None
    mean = _means(pipeline, method)
    if method.policy_facts.updates_all_in_flight:
        text = "gradients are of the weights before the newest, on every stage"
    else:
        where = "on the only stage" if len(most) == 1 else f"on stages 0 to {len(most) - 1}"
        text = f"between the forward and the backward of a minibatch {where} come {_series(most)}"
        text += " updates"
        if mean != most:
            text += f" at most, {_series(round(one, 2) for one in mean)} on average"
    needed = samples_needed(max(mean), method.policy, optimizer)
    text += (
        f", which takes about {needed:.1f} times the samples of plain PyTorch to the same loss, at "
        "the best learning rate of each (docs/results.md)"
    )
    fewer = _microbatches_for_one(max(method.parts_in_between(pipeline)), method, batch_size)
    if max(most) > 1 and fewer is not None:
        text += f"; with microbatches={fewer} it would be one at most"
    return f"{text}; with schedule={FLUSHED_1F1B.name} none, as in plain PyTorch"


def _microbatches_for_one(apart: int, method: Method, batch_size: int) -> int | None:
    """Return the fewest that make s one at most, ``apart`` parts from forward to backward."""
    enough = range(-(-apart // method.accumulate), batch_size + 1)
    return next((number for number in enough if batch_size % number == 0), None)


def _series(numbers: Iterable[float]) -> str:
    *first, last = (f"{number:g}" for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last
