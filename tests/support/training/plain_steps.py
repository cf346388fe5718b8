"""What optimizers do, written out for weights by name, to hold those of torch and ours against."""

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

Weights = dict[str, Tensor]
Step = Callable[[Weights, Weights], Weights]
"""Makes W_{t+1} of W_t and the gradient, both by name; it keeps what an optimizer keeps."""
MatrixStep = Callable[[Tensor, Tensor], Tensor]
"""The same for one matrix."""


def with_momentum(rate: float, momentum: float) -> Step:
    """SGD: m ← β·m + g, W ← W − lr·m."""
    kept: Weights = {}

    def step(weights: Weights, gradients: Weights) -> Weights:
        for name, gradient in gradients.items():
            kept[name] = momentum * kept[name] + gradient if name in kept else gradient
        return {name: weight - rate * kept[name] for name, weight in weights.items()}

    return step


def torchs(build: Callable[[str, Tensor], Optimizer]) -> Step:
    """One of torch's optimizers for each weight."""
    leaves: Weights = {}
    optimizers: dict[str, Optimizer] = {}

    def step(weights: Weights, gradients: Weights) -> Weights:
        for name, gradient in gradients.items():
            if name not in optimizers:
                leaves[name] = weights[name].clone().requires_grad_()
                optimizers[name] = build(name, leaves[name])
            leaves[name].data = weights[name].clone()
            leaves[name].grad = gradient
            optimizers[name].step()
        return {name: leaves[name].detach().clone() for name in weights}

    return step


def for_matrices(matrix_step: Callable[[], MatrixStep], other: Step) -> Step:
    """One step for each matrix, another for what else there is."""
    steps: defaultdict[str, MatrixStep] = defaultdict(matrix_step)

    def step(weights: Weights, gradients: Weights) -> Weights:
        matrices = {name for name, weight in weights.items() if weight.dim() == 2}
        made = {name: steps[name](weights[name], gradients[name]) for name in matrices}
        of_others = [
            {n: v for n, v in x.items() if n not in matrices} for x in (weights, gradients)
        ]
        return made | other(*of_others)

    return step


def adamw(rate: float, eps: float, decay: float, betas: tuple[float, float] = (0.9, 0.999)) -> Step:
    """torch's AdamW."""

    def build(name: str, weight: Tensor) -> Optimizer:
        return AdamW([weight], lr=rate, eps=eps, weight_decay=decay, betas=betas)

    return torchs(build)


def muon(rate: float, decay: float) -> MatrixStep:
    """torch's Muon, whose steps are as large as AdamW's."""

    def build(_: str, weight: Tensor) -> Optimizer:
        return torch.optim.Muon(
            [weight], lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"
        )

    step = torchs(build)
    return lambda weight, gradient: step({"": weight}, {"": gradient})[""]
