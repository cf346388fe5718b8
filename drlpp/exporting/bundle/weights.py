"""The weights of an asynchronous stage: which version a pass meets, and how an update is made.

A part meets W_t at its forward and W_{t+s} at its backward, s updates later. ``newest`` leaves it
at that, ``predicted`` runs the forward with W_t − lr·s·ΔW_t (PipeOptim), and ``kept`` keeps the
version of the forward for the backward (PipeDream).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import _unsafe_preserve_version_counter
from torch.func import functional_call
from torch.optim import Optimizer

from .facts import Asynchrony


class Weights(nn.Module):
    """Calls a stage with the weights that are in force, and updates them.

    Args:
        stage: called as it is.
        optimizer: of its weights; None if it has none.
        clip_norm: gradients of the stage with a larger norm are scaled down to it; 0 does not.
    """

    def __init__(self, stage: nn.Module, optimizer: Optimizer | None, clip_norm: float) -> None:
        super().__init__()
        self.stage = stage
        self.optimizer = optimizer
        self.clip_norm = clip_norm
        self.trained = {n: w for n, w in stage.named_parameters() if w.requires_grad}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage."""
        return self.stage(*args, **kwargs)

    def begin(self) -> None:
        """Begin a step, the pipeline empty: versions are numbered from 0."""

    @contextmanager
    def forward_of(self, part: int) -> Iterator[None]:
        """Put the weights of a part's forward in force."""
        yield

    def backward_done(self, part: int) -> None:
        """Note that the gradients of a part have been computed."""

    def update(self, contributions: int) -> None:
        """Make the next version, from the mean of the gradients since the last."""
        if self.optimizer is None:
            return
        weights = list(self.trained.values())
        for weight in weights:
            if weight.grad is not None and contributions > 1:
                weight.grad.div_(contributions)
        if self.clip_norm:
            nn.utils.clip_grad_norm_(weights, self.clip_norm)
        # Backwards that are still to come may read the newer values: autograd is not to notice.
        with _unsafe_preserve_version_counter(tuple(weights)):
            self.optimizer.step()
        self.optimizer.zero_grad()


class Predicted(Weights):
    """Forwards run with W_t − lr·s·ΔW_t (pipeoptim eq. 6, algorithm 1).

    ``leads`` has s of every part.
    """

    def __init__(
        self, stage: nn.Module, optimizer: Optimizer | None, clip_norm: float, leads: list[int]
    ) -> None:
        super().__init__(stage, optimizer, clip_norm)
        self.leads = leads
        self._last_step: dict[str, Tensor] = {}

    @contextmanager
    def forward_of(self, part: int) -> Iterator[None]:
        """Move the weights ahead, and back."""
        directions = self._directions() if self.leads[part] else {}
        if not directions:
            yield
            return
        assert self.optimizer is not None
        ahead = self.leads[part] * self.optimizer.param_groups[0]["lr"]
        kept = {name: self.trained[name].detach().clone() for name in directions}
        moved = {name: kept[name] - ahead * direction for name, direction in directions.items()}
        self._write(moved)
        try:
            yield
        finally:
            self._write(kept)

    def update(self, contributions: int) -> None:
        """Make the next version, and note the step where the optimizer does not keep it."""
        if self.optimizer is None or _has_direction(self.optimizer):
            super().update(contributions)
            return
        before = {name: weight.detach().clone() for name, weight in self.trained.items()}
        have = {name for name, weight in self.trained.items() if weight.grad is not None}
        super().update(contributions)
        group = self.optimizer.param_groups[0]
        # Decoupled decay is no part of ΔW.
        decay = group["lr"] * group["weight_decay"] if group.get("decoupled_weight_decay") else 0.0
        for name, weight in self.trained.items():
            step = before[name] - weight.detach()
            if name in have:
                step -= decay * before[name]
            self._last_step[name] = step / group["lr"] if group["lr"] else step

    def _directions(self) -> dict[str, Tensor]:
        """Return ΔW_t of every weight that has made a step."""
        optimizer = self.optimizer
        if optimizer is None or not _has_direction(optimizer):
            return self._last_step
        states = {name: optimizer.state.get(weight, {}) for name, weight in self.trained.items()}
        group = optimizer.param_groups[0]
        if isinstance(optimizer, torch.optim.SGD):
            buffers = {name: state.get("momentum_buffer") for name, state in states.items()}
            return {name: buffer for name, buffer in buffers.items() if buffer is not None}
        return {name: _adam_step(state, group) for name, state in states.items() if state}

    def _write(self, values: dict[str, Tensor]) -> None:
        weights = tuple(self.trained[name] for name in values)
        with torch.no_grad(), _unsafe_preserve_version_counter(weights):
            for weight, value in zip(weights, values.values(), strict=True):
                weight.copy_(value)


class Kept(Weights):
    """Both passes of a part use the same version; ``versions`` has its number for every part.

    A version is a copy that is kept until the last part that uses it has made its backward.
    """

    def __init__(
        self, stage: nn.Module, optimizer: Optimizer | None, clip_norm: float, versions: list[int]
    ) -> None:
        super().__init__(stage, optimizer, clip_norm)
        self.versions = versions
        self._last_part = {version: part for part, version in enumerate(versions)}
        self._copies: dict[int, dict[str, Tensor]] = {}
        self._in_force: dict[str, Tensor] = {}
        self._newest = 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the stage with the version in force."""
        return functional_call(self.stage, self._in_force, args, kwargs)

    def begin(self) -> None:
        """Begin with the newest version as number 0."""
        self._newest, self._copies = 0, {}
        self._keep()

    @contextmanager
    def forward_of(self, part: int) -> Iterator[None]:
        """Put the version of the part in force."""
        self._in_force = self._copies[self.versions[part]]
        yield

    def backward_done(self, part: int) -> None:
        """Move the gradients from the version of the part to the weights."""
        version = self.versions[part]
        for name, copy in self._copies[version].items():
            weight, gradient = self.trained[name], copy.grad
            copy.grad = None
            if gradient is not None:
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
        if self._last_part[version] == part:
            del self._copies[version]

    def update(self, contributions: int) -> None:
        """Make the next version, and a copy of it if a part will use it."""
        super().update(contributions)
        self._newest += 1
        self._keep()

    def _keep(self) -> None:
        if self._newest in self._last_part:
            self._copies[self._newest] = {
                name: weight.detach().clone().requires_grad_()
                for name, weight in self.trained.items()
            }


def weights_of(
    stage: nn.Module,
    optimizer: Optimizer | None,
    clip_norm: float,
    asynchrony: Asynchrony | None,
    rank: int,
) -> Weights:
    """Return the weights of stage ``rank``."""
    if asynchrony is None or asynchrony.policy == "newest":
        return Weights(stage, optimizer, clip_norm)
    if asynchrony.policy == "predicted":
        return Predicted(stage, optimizer, clip_norm, asynchrony.leads[rank])
    return Kept(stage, optimizer, clip_norm, asynchrony.versions[rank])


def _has_direction(optimizer: Optimizer) -> bool:
    """Return whether the optimizer keeps ΔW itself: momentum, or Adam's moments."""
    if isinstance(optimizer, torch.optim.SGD):
        group = optimizer.param_groups[0]
        return bool(group["momentum"]) and not group["nesterov"]
    return type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)


def _adam_step(state: dict[str, Any], group: dict[str, Any]) -> Tensor:
    """Return m̂ / (√v̂ + ε); AMSGrad takes the largest v so far."""
    first, second = group["betas"]
    steps = float(state["step"])
    moment: Tensor = state["exp_avg"] / (1 - first**steps)
    square = state["max_exp_avg_sq" if group["amsgrad"] else "exp_avg_sq"] / (1 - second**steps)
    return moment / (square.sqrt() + group["eps"])
