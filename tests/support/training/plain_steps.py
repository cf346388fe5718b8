"""What optimizers do, written out for weights by name, to hold those of torch and ours against."""

from collections import defaultdict
from collections.abc import Callable

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from drlpp.specs.basis_rotation import RIDGE

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


def rotated_adam(
    rate: float,
    betas: tuple[float, float],
    eps: float,
    decay: float,
    frequency: int,
    largest_side: int = 4096,
) -> MatrixStep:
    """Jung et al., algorithms 1 and 2, with explicit rotations of all that is kept, unsorted."""
    (beta1, beta2), steps = betas, 0
    covariances: list[Tensor] = []
    bases: list[Tensor] = []
    first = second = torch.zeros(())

    def step(weight: Tensor, gradient: Tensor) -> Tensor:
        nonlocal first, second, steps
        steps += 1
        for side, matrix in enumerate((gradient, gradient.T)):
            size = len(matrix)
            if steps == 1:
                covariances.append(torch.zeros(size, size, dtype=matrix.dtype))
                bases.append(torch.eye(size, dtype=matrix.dtype))
            covariances[side] = beta2 * covariances[side] + (1 - beta2) * matrix @ matrix.T
            mean = covariances[side].trace() / size
            axes = torch.diag(torch.linspace(1, 0, size, dtype=matrix.dtype))
            seen = covariances[side] + RIDGE * mean * axes
            if size <= largest_side and steps == 1:
                bases[side] = torch.linalg.eigh(seen).eigenvectors.flip(1)
            elif size <= largest_side and steps % frequency == 0:
                order = torch.diag(bases[side].T @ seen @ bases[side]).argsort(descending=True)
                second = second[order] if side == 0 else second[:, order]
                bases[side] = torch.linalg.qr(seen @ bases[side][:, order]).Q
        left, right = bases
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * (left.T @ gradient @ right) ** 2
        roots = (second / (1 - beta2**steps)).sqrt() + eps
        direction = left @ (left.T @ first @ right / (1 - beta1**steps) / roots) @ right.T
        return weight - rate * decay * weight - rate * direction

    return step
