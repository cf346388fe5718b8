"""Training without the runtime, to hold workers against: the user's module, an ordinary loop."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from drlpp.capturing.graph import OpGraph
from drlpp.placement.placement import Placement
from drlpp.specs.batches import Batch, call, chosen, joined

Minibatch = tuple[Batch, Batch]
Loss = Callable[[Any, Tensor], Tensor]


def train(
    module: nn.Module,
    loss: Loss,
    optimizer: Optimizer,
    minibatches: Sequence[Minibatch],
    *,
    together: int = 1,
    clip_norm: float = 0.0,
    schedule: LRScheduler | None = None,
    autocast: torch.dtype | None = None,
) -> None:
    """One step for every ``together`` minibatches, which make one large one.

    Args:
        module: trained in place.
        loss: the mean over a minibatch, of the module's outputs and the targets.
        optimizer: of its parameters.
        minibatches: inputs and targets.
        together: minibatches of one step; the last step has what is left.
        clip_norm: largest norm of all gradients; 0 does not clip.
        schedule: stepped after every step of the optimizer.
        autocast: passes run in this type.
    """
    for step in range(0, len(minibatches), together):
        inputs, targets = concatenated(minibatches[step : step + together])
        optimizer.zero_grad()
        with torch.autocast("cpu", autocast) if autocast else nullcontext():
            value = loss(call(module, inputs), targets)
        value.backward()
        if clip_norm:
            nn.utils.clip_grad_norm_(module.parameters(), clip_norm)
        optimizer.step()
        if schedule:
            schedule.step()


def concatenated(minibatches: Sequence[Minibatch]) -> Minibatch:
    return joined(minibatches)


def draw(inputs: Batch, targets: Batch, order: Tensor) -> list[Minibatch]:
    """The minibatches of ``order``, (minibatches, batch size) indices of samples."""
    return [chosen((inputs, targets), indices) for indices in order]


def random_order(samples: int, minibatches: int, batch_size: int) -> Tensor:
    generator = torch.Generator().manual_seed(6)
    return torch.randint(0, samples, (minibatches, batch_size), generator=generator)


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    return [weight for weight in module.parameters() if weight.requires_grad]


def in_a_row(graph: OpGraph, *accelerators: int) -> Placement:
    """Contiguous stages of about as many operators each, held by ``accelerators``' stages."""
    stages = max(accelerators) + 1
    return Placement.from_assignment(
        [stages * i // len(graph) for i in range(len(graph))], accelerators
    )


def assert_state(
    found: dict[str, Tensor], module: nn.Module, *, rtol: float = 1e-9, atol: float = 1e-12
) -> None:
    torch.testing.assert_close(found, dict(module.state_dict()), rtol=rtol, atol=atol)
