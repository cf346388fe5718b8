"""Muon for matrices and AdamW for all other weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.optim import Muon

from drlpp.specs.matrices_apart import MatricesApart, check_whole_number

if TYPE_CHECKING:
    from torch.optim.optimizer import ParamsT


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
