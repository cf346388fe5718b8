"""torch's Muon takes matrices alone; a stage has vectors too, so here AdamW takes these."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor
from torch.optim import AdamW, Muon, Optimizer

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


class MuonWithAdamW(Optimizer):
    """torch's Muon for weights of two dimensions, torch's AdamW for the others, as one group.

    A stage may have weights of one kind only. Both keep their state here, and a schedule of
    learning rates moves both rates alike.

    Args:
        params: weights of any dimensions; complex ones are AdamW's.
        lr: of all weights.
        weight_decay: of all weights, decoupled.
        momentum, nesterov, ns_steps, adjust_lr_fn: of Muon. ``match_rms_adamw`` makes its steps as
            large as AdamW's, so that one rate suits both; ``original`` is the other choice.
        betas, eps: of AdamW.
        foreach, fused: kernels of AdamW.
    """

    example_shapes: ClassVar[tuple[tuple[int, ...], ...]] = ((4, 4), (4,))
    """Weights of each kind that is treated alike, to count what is kept for them."""

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
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
        of_muon: dict[str, Any] = {
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        of_adamw: dict[str, Any] = {"betas": betas, "eps": eps, "foreach": foreach, "fused": fused}
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, **of_muon, **of_adamw})
        (group,) = self.param_groups
        matrices: list[Tensor] = []
        others: list[Tensor] = []
        for weight in group["params"]:
            is_matrix = weight.dim() == 2 and not weight.is_complex()
            (matrices if is_matrix else others).append(weight)
        # The options of both are checked, whichever this stage needs.
        unused = [torch.zeros(1, 1)]
        self._parts: list[Optimizer] = [
            Muon(matrices or unused, lr=lr, weight_decay=weight_decay, **of_muon),
            AdamW(others or unused, lr=lr, weight_decay=weight_decay, **of_adamw),
        ]

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update all weights that have a gradient, with the group's learning rate."""
        for part in self._parts:
            # Loading a state dict makes another dictionary of it.
            part.state = self.state
            part.param_groups[0]["lr"] = self.param_groups[0]["lr"]
            part.step()
