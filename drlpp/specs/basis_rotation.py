"""Adam in a rotated basis (Jung et al., arXiv 2602.03515, algorithms 1 and 2).

Stale gradients hurt Adam where its coordinates are not those of the curvature. So the moments of a
matrix G are compared in a basis of its own, which follows the eigenvectors of the gradients'
covariances. Bilateral, from second-order covariances, as the authors' code does by default:

    L ← β₂·L + (1 − β₂)·G·Gᵀ,  R ← β₂·R + (1 − β₂)·Gᵀ·G
    U, V ← eigenvectors of L, R at first, then in every f-th update qr(L·U), qr(R·V)
    M ← β₁·M + (1 − β₁)·G,  S ← β₂·S + (1 − β₂)·(Uᵀ·G·V)²
    W ← W − lr·λ·W − lr·U·(UᵀM̂V / (√Ŝ + ε))·Vᵀ

ε is added to the root of Ŝ as in torch's Adam; the authors' code adds it before the bias is
corrected. Without a rotation it is AdamW.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from drlpp.specs.matrices_apart import MatricesApart, check_whole_number

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT

RIDGE = 1e-4
"""Of the mean eigenvalue: where gradients say nothing, the axes decide, and no rounding error."""


class BasisRotation(MatricesApart):
    """Adam in a rotated basis for matrices, torch's AdamW for the other weights.

    Args:
        params: weights of any dimensions, in one group.
        lr: of matrices.
        adamw_lr: of the other weights, if it is another.
        betas, eps, weight_decay: of both; the decay is decoupled.
        frequency: updates after which the basis is turned again.
        largest_side: rows or columns that are more stay as they are.
        foreach, fused: kernels of AdamW.
    """

    # A matrix whose sides differ keeps the squares of both.
    example_shapes: ClassVar[tuple[tuple[int, ...], ...]] = ((16, 4), (4,))

    def __init__(
        self,
        params: ParamsT,
        lr: float = 5e-4,
        adamw_lr: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        frequency: int = 10,
        largest_side: int = 4096,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        check_whole_number("frequency", frequency, 1, 1_000_000)
        check_whole_number("largest_side", largest_side, 0, 1_000_000)
        super().__init__(
            params,
            RotatedAdamW,
            lr,
            adamw_lr,
            both={"betas": betas, "eps": eps, "weight_decay": weight_decay},
            of_matrices={"frequency": frequency, "largest_side": largest_side},
            of_adamw={},
            kernels={"foreach": foreach, "fused": fused},
        )


class RotatedAdamW(Optimizer):
    """What :class:`BasisRotation` does to matrices; its options are that one's."""

    def __init__(self, params: ParamsT, **options: Any) -> None:
        super().__init__(params, options)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all matrices that have a gradient."""
        (group,) = self.param_groups
        for weight in group["params"]:
            if weight.grad is not None:
                _update_(weight, weight.grad, self.state[weight], group)


def _update_(
    weight: Tensor, gradient: Tensor, state: dict[str, Tensor], group: Mapping[str, Any]
) -> None:
    beta1, beta2 = group["betas"]
    if not state:
        state["step"] = torch.zeros(())
        state["exp_avg"] = torch.zeros_like(gradient)
        state["exp_avg_sq"] = torch.zeros_like(gradient)
        for side, length in enumerate(gradient.shape):
            if length <= group["largest_side"]:
                state[f"covariance_{side}"] = gradient.new_zeros(length, length)
    state["step"] += 1
    step = int(state["step"].item())
    for side, matrix in enumerate((gradient, gradient.T)):
        if f"covariance_{side}" in state:
            state[f"covariance_{side}"].lerp_(matrix @ matrix.T, 1 - beta2)
            if step == 1 or step % group["frequency"] == 0:
                _turn_basis(state, side)
    state["exp_avg"].lerp_(gradient, 1 - beta1)
    rotated = _rotated(gradient, state)
    state["exp_avg_sq"].mul_(beta2).addcmul_(rotated, rotated, value=1 - beta2)
    roots = state["exp_avg_sq"].div(1 - beta2**step).sqrt_().add_(group["eps"])
    direction = _rotated(state["exp_avg"], state).div_(roots)
    weight.mul_(1 - group["lr"] * group["weight_decay"])
    weight.add_(_rotated(direction, state, back=True), alpha=-group["lr"] / (1 - beta1**step))


def _turn_basis(state: dict[str, Tensor], side: int) -> None:
    """Compute U (side 0) or V anew; S keeps to its directions, which are sorted by eigenvalue."""
    covariance = state[f"covariance_{side}"]
    size = len(covariance)
    ridge = torch.linspace(1, 0, size, dtype=covariance.dtype, device=covariance.device)
    covariance = covariance + torch.diag(ridge * (RIDGE / size * covariance.trace()))
    basis = state.get(f"basis_{side}")
    if basis is None:
        state[f"basis_{side}"] = torch.linalg.eigh(covariance).eigenvectors.flip(1)
        return
    order = torch.einsum("ij,ik,kj->j", basis, covariance, basis).argsort(descending=True)
    state["exp_avg_sq"] = state["exp_avg_sq"].index_select(side, order)
    state[f"basis_{side}"] = torch.linalg.qr(covariance @ basis[:, order]).Q


def _rotated(matrix: Tensor, state: Mapping[str, Tensor], *, back: bool = False) -> Tensor:
    """Return Uᵀ·G·V, or with ``back`` U·G·Vᵀ; a side without a basis stays as it is."""
    result = matrix.clone()
    if "basis_0" in state:
        result = (state["basis_0"] if back else state["basis_0"].T) @ result
    if "basis_1" in state:
        result = result @ (state["basis_1"].T if back else state["basis_1"])
    return result
