"""Two optimizers as one of one group: one for matrices, such as Muon, and AdamW for the rest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class MatricesApart(Optimizer):
    """An optimizer for weights of two dimensions, torch's AdamW for the others.

    A stage may have weights of one kind only. Both keep their state here, and a schedule of
    learning rates moves both rates alike.

    Args:
        params: weights of any dimensions, in one group; complex ones are AdamW's.
        kind: the optimizer of matrices.
        lr: of matrices.
        adamw_lr: of the other weights, if it is another.
        both: options of both.
        of_matrices, of_adamw: options of one of the two.
        kernels: ``foreach`` and ``fused`` of AdamW.
    """

    example_shapes: ClassVar[tuple[tuple[int, ...], ...]] = ((4, 4), (4,))
    """Weights of each kind that is treated alike, to count what is kept for them."""

    def __init__(
        self,
        params: ParamsT,
        kind: type[Optimizer],
        lr: float,
        adamw_lr: float | None,
        both: Mapping[str, Any],
        of_matrices: Mapping[str, Any],
        of_adamw: Mapping[str, Any],
        kernels: Mapping[str, bool | None],
    ) -> None:
        if lr < 0:
            raise ValueError(f"Invalid learning rate: {lr}")
        if adamw_lr is not None and lr == 0:
            raise ValueError("adamw_lr is relative to lr, which is 0; expected lr above 0")
        super().__init__(params, {"lr": lr, **both, **of_matrices, **of_adamw, **kernels})
        (group,) = self.param_groups
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for weight in group["params"]:
            is_matrix = weight.dim() == 2 and not weight.is_complex()
            (matrices if is_matrix else others).append(weight)
        # The options of both are checked, whichever this stage needs.
        unused = [torch.zeros(1, 1)]
        of_others: dict[str, Any] = {**both, **of_adamw, **kernels}
        others_lr = lr if adamw_lr is None else adamw_lr
        chosen: Any = kind
        self._parts: list[tuple[Optimizer, float]] = [
            (chosen(matrices or unused, lr=lr, **both, **of_matrices), 1.0),
            (AdamW(others or unused, lr=others_lr, **of_others), others_lr / lr if lr else 1.0),
        ]
        for part, _ in self._parts:
            part.state = self.state

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient, with the group's learning rate."""
        for part, ratio in self._parts:
            part.param_groups[0]["lr"] = self.param_groups[0]["lr"] * ratio
            part.step()


def check_whole_number(name: str, value: object, least: int, most: int) -> None:
    """Raise ValueError unless an option is a whole number in a range."""
    if not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} is {value}; expected a whole number from {least} to {most}")


class MuonWithAdamW(MatricesApart):
    """torch's Muon for weights of two dimensions, torch's AdamW for the others.

    Args:
        params: weights of any dimensions, in one group.
        lr: of matrices.
        adamw_lr: of the other weights, if it is another.
        weight_decay: of all weights, decoupled.
        momentum, nesterov, ns_steps, adjust_lr_fn: of Muon. ``match_rms_adamw`` makes its steps as
            large as AdamW's, so that one rate suits both; ``original`` is the other choice.
        betas, eps: of AdamW.
        foreach, fused: kernels of AdamW.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        adamw_lr: float | None = None,
        weight_decay: float = 0.01,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_steps: int = 5,
        adjust_lr_fn: str = "match_rms_adamw",
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        foreach: bool | None = None,
        fused: bool | None = None,
    ) -> None:
        # torch has it since 2.9.
        from torch.optim import Muon

        check_whole_number("ns_steps", ns_steps, 1, 99)
        super().__init__(
            params,
            Muon,
            lr,
            adamw_lr,
            both={"weight_decay": weight_decay},
            of_matrices={
                "momentum": momentum,
                "nesterov": nesterov,
                "ns_steps": ns_steps,
                "adjust_lr_fn": adjust_lr_fn,
            },
            of_adamw={"betas": betas, "eps": eps},
            kernels={"foreach": foreach, "fused": fused},
        )
