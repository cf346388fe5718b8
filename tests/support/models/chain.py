"""A chain of four layers, one a stage, and how asynchronous methods train it, by hand.

The rule is that of `docs/methods.md`, "Microbatches without a flush" and "All weight policies", in
a loop over minibatches that knows of no schedule, stage or worker: only how many updates late each
layer is. So it can tell when workers and reference, which follow one schedule, are wrong together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.graph import OpGraph
from drlpp.models.model_reference import ModelReference
from drlpp.models.task import Task
from drlpp.placement.placement import Placement, Stage
from tests.support.models.tied_chain import LinearOfTwoVersions
from tests.support.training.plain_steps import Step, Weights

WIDTH, CLASSES, BATCH, SAMPLES = 6, 5, 8, 40
LAYERS = ("first", "second", "third", "last")


class Chain(nn.Module):
    """Four linear layers with a tanh between them."""

    def __init__(self) -> None:
        super().__init__()
        for layer in LAYERS:
            setattr(self, layer, nn.Linear(WIDTH, CLASSES if layer == LAYERS[-1] else WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for layer in LAYERS[:-1]:
            x = torch.tanh(getattr(self, layer)(x))
        return self.last(x)


def chain() -> Task:
    """The chain as a classification task in float64."""
    inputs = torch.randn(BATCH, WIDTH).double()
    return Task(Chain().double(), (inputs,), torch.arange(BATCH) % CLASSES, F.cross_entropy)


REFERENCE = ModelReference.named(f"{__name__}:chain")


def samples() -> tuple[list[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(SAMPLES, WIDTH, generator=generator).double()
    return [inputs], torch.randint(0, CLASSES, (SAMPLES,), generator=generator)


def placements(graph: OpGraph) -> dict[str, Placement]:
    """Layers on one worker, on four, on four there and back, and the first two on two replicas."""
    layer_of: list[int] = []
    for operator in graph.operators:
        layer = (operator.module or "").split(".")[0]
        layer_of.append(LAYERS.index(layer) if layer in LAYERS else layer_of[-1])
    return {
        "single": Placement.from_assignment([0] * len(graph), (0,)),
        "straight": Placement.from_assignment(layer_of, range(4)),
        "replicated": Placement.from_assignment([k // 2 for k in layer_of], (0, 0, 1)),
        "folded": Placement(
            stages=tuple(
                Stage(
                    operators=tuple(op for op, k in enumerate(layer_of) if k == stage),
                    accelerators=(holder,),
                )
                for stage, holder in enumerate((0, 1, 1, 0))
            )
        ),
    }


class Lateness(Protocol):
    """How many updates late a layer is for part ``j`` of minibatch ``t``."""

    def __call__(self, layer: int, t: int, j: int) -> int: ...


class Use(Protocol):
    """Which weights a layer's forward and backward use, of W_0, …, W_t and ``s``."""

    def __call__(self, versions: Sequence[Tensor], s: int) -> tuple[Tensor, Tensor]: ...


def straight(microbatches: int) -> Lateness:
    """s = min(t, ⌈(D − rank − 1 − j) / M⌉), 0 where that is negative."""
    return lambda layer, t, j: min(t, max(0, -(-(len(LAYERS) - 1 - layer - j) // microbatches)))


def replicated(layer: int, t: int, j: int) -> int:
    """Two replicas with two parts in flight each: (2 − 1)·2 parts between, of two a minibatch."""
    return min(t, 1) if layer < 2 else 0


def flushed(layer: int, t: int, j: int) -> int:
    """No update comes between."""
    return 0


def stashed(versions: Sequence[Tensor], s: int) -> tuple[Tensor, Tensor]:
    """PipeDream: both passes use W_{t−s}, the newest at the forward."""
    return versions[-1 - s], versions[-1 - s]


def newest(versions: Sequence[Tensor], s: int) -> tuple[Tensor, Tensor]:
    """PACI: each pass uses what is the newest then."""
    return versions[-1 - s], versions[-1]


def before_the_newest(versions: Sequence[Tensor], s: int) -> tuple[Tensor, Tensor]:
    """2BW: both passes use the version before W_t, however late the layer is."""
    return versions[-2 if len(versions) > 1 else -1], versions[-2 if len(versions) > 1 else -1]


def predicted(versions: Sequence[Tensor], s: int) -> tuple[Tensor, Tensor]:
    """PipeOptim: the forward looks s updates ahead along the last step, the backward uses W_t."""
    met = versions[: len(versions) - s]
    step = met[-1] - met[-2] if len(met) > 1 else torch.zeros_like(met[-1])
    return met[-1] + s * step, versions[-1]


@dataclass(frozen=True)
class Rule:
    """How a method trains the chain: how late, by which weights, with which steps."""

    late: Lateness
    use: Use
    step: Callable[[], Step]


def by_the_rule(
    minibatches: Sequence[tuple[Tensor, Tensor]], microbatches: int, rule: Rule
) -> Weights:
    """Train on minibatches of so many parts; an update's gradient is the mean over them."""
    start = dict(REFERENCE.build().module.named_parameters())
    versions: dict[str, list[Tensor]] = {name: [w.detach()] for name, w in start.items()}
    step = rule.step()
    for t, (inputs, targets) in enumerate(minibatches):
        total = {name: torch.zeros_like(weight) for name, weight in start.items()}
        parts = zip(inputs.chunk(microbatches), targets.chunk(microbatches), strict=True)
        for j, (x, wanted) in enumerate(parts):
            leaves: Weights = {}
            for number, layer in enumerate(LAYERS):
                s = rule.late(number, t, j)
                weight, in_backward = rule.use(versions[f"{layer}.weight"], s)
                bias, _ = rule.use(versions[f"{layer}.bias"], s)
                leaves[f"{layer}.weight"] = weight = weight.clone().requires_grad_()
                leaves[f"{layer}.bias"] = bias = bias.clone().requires_grad_()
                x = LinearOfTwoVersions.apply(x, weight, in_backward) + bias
                x = x if layer == LAYERS[-1] else torch.tanh(x)
            F.cross_entropy(x, wanted).backward()
            for name, leaf in leaves.items():
                assert leaf.grad is not None
                total[name] += leaf.grad / microbatches
        made = step({name: known[-1] for name, known in versions.items()}, total)
        for name, weight in made.items():
            versions[name].append(weight)
    return {name: known[-1] for name, known in versions.items()}
