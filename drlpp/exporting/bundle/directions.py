"""Where weights are moved for a pass that looks some updates ahead, or back.

The weights are W_t, and ΔW_t is the direction of their last update, lr·ΔW_t = W_{t−1} − W_t. A lead
is a number of updates, negative to look back; learning rates are those of the last update.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer


class Direction(ABC):
    """Along what the optimizer does, as far as it tells: W_t − lr·s·ΔW_t (pipeoptim eq. 6).

    Args:
        trained: the weights of ``optimizer`` by name.
        optimizer: makes the updates.
        decay: γ of a trajectory.
    """

    def __init__(
        self, trained: Mapping[str, nn.Parameter], optimizer: Optimizer, decay: float
    ) -> None:
        self.trained, self.optimizer, self.decay = trained, optimizer, decay

    @property
    def group(self) -> dict[str, Any]:
        """The options of the optimizer."""
        group: dict[str, Any] = self.optimizer.param_groups[0]
        return group

    def state(self, name: str) -> dict[str, Any]:
        """Return what the optimizer keeps of a weight."""
        state: dict[str, Any] = self.optimizer.state.get(self.trained[name], {})
        return state

    def before_step(self) -> None:
        """Note what the optimizer is about to do; gradients are in ``grad``."""

    def after_step(self) -> None:
        """Note what it has done."""

    def shifts(self, lead: int) -> dict[str, Tensor]:
        """Return what is to be added to weights; those that nothing is known of are left out."""
        ahead = lead * self.group["lr"]
        return {name: -ahead * direction for name, direction in self.directions().items()}

    @abstractmethod
    def directions(self) -> dict[str, Tensor]:
        """Return ΔW_t of weights."""


class LastStep(Direction):
    """Along the last step, a decay of weights included (policy last-step)."""

    def __init__(
        self, trained: Mapping[str, nn.Parameter], optimizer: Optimizer, decay: float
    ) -> None:
        super().__init__(trained, optimizer, decay)
        self._before: dict[str, Tensor] = {}
        self._step: dict[str, Tensor] = {}

    def before_step(self) -> None:
        """Keep W_{t−1}."""
        self._before = {name: weight.detach().clone() for name, weight in self.trained.items()}

    def after_step(self) -> None:
        """Keep ΔW_t."""
        rate = self.group["lr"]
        for name, weight in self.trained.items():
            step = self._before[name] - weight.detach()
            self._step[name] = step / rate if rate else step

    def directions(self) -> dict[str, Tensor]:
        """Return what was kept."""
        return self._step


class OfOptimizer(LastStep):
    """PipeOptim: along momentum or Adam's step, else the last step without decoupled decay."""

    @property
    def _tells(self) -> bool:
        if isinstance(self.optimizer, torch.optim.SGD):
            return bool(self.group["momentum"]) and not self.group["nesterov"]
        return type(self.optimizer) in (torch.optim.Adam, torch.optim.AdamW)

    def before_step(self) -> None:
        """Keep W_{t−1}, and which weights have a gradient, where the optimizer does not tell."""
        if not self._tells:
            super().before_step()
            self._moving = {n for n, weight in self.trained.items() if weight.grad is not None}

    def after_step(self) -> None:
        """Keep ΔW_t without decoupled decay, which is no part of it."""
        if self._tells:
            return
        super().after_step()
        if self.group.get("decoupled_weight_decay"):
            for name in self._moving:
                self._step[name] -= self.group["weight_decay"] * self._before[name]

    def directions(self) -> dict[str, Tensor]:
        """Return ΔW_t of every weight that has made a step."""
        if not self._tells:
            return super().directions()
        states = {name: state for name in self.trained if (state := self.state(name))}
        if isinstance(self.optimizer, torch.optim.SGD):
            buffers = {name: state.get("momentum_buffer") for name, state in states.items()}
            return {name: buffer for name, buffer in buffers.items() if buffer is not None}
        return {name: _of_adam(state, self.group) for name, state in states.items()}


class Smoothed(Direction):
    """SpecTrain: along momentum, else the first moment, else the last gradient (its eq. 6)."""

    def __init__(
        self, trained: Mapping[str, nn.Parameter], optimizer: Optimizer, decay: float
    ) -> None:
        super().__init__(trained, optimizer, decay)
        self._gradients: dict[str, Tensor] = {}

    def after_step(self) -> None:
        """Keep gradients, where the optimizer smooths none."""
        self._gradients = {
            name: weight.grad.clone()
            for name, weight in self.trained.items()
            if weight.grad is not None and self._smoothed(name) is None
        }

    def _smoothed(self, name: str) -> Tensor | None:
        state = self.state(name)
        keys = ("momentum_buffer", "exp_avg", "grad_avg")
        found: Tensor | None = next((state[key] for key in keys if key in state), None)
        return found

    def directions(self) -> dict[str, Tensor]:
        """Return m of every weight that has one, else its last gradient."""
        found = {name: self._smoothed(name) for name in self.trained}
        return self._gradients | {name: m for name, m in found.items() if m is not None}


_ADAM: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8, "amsgrad": False}


class AdamStep(Direction):
    """XPipe: along Adam's step, with moments of its own where the optimizer is another."""

    def __init__(
        self, trained: Mapping[str, nn.Parameter], optimizer: Optimizer, decay: float
    ) -> None:
        super().__init__(trained, optimizer, decay)
        adams = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)
        self._is_adam = adams and not self.group["maximize"]
        self._moments: dict[str, dict[str, Any]] = {}

    def before_step(self) -> None:
        """Let the moments follow the new gradients."""
        first, second = _ADAM["betas"]
        for name, weight in self.trained.items():
            if self._is_adam or weight.grad is None:
                continue
            zeros = torch.zeros_like
            known = {"exp_avg": zeros(weight), "exp_avg_sq": zeros(weight), "step": 0}
            moments = self._moments.setdefault(name, known)
            moments["exp_avg"].lerp_(weight.grad, 1 - first)
            squared = moments["exp_avg_sq"].mul_(second)
            squared.addcmul_(weight.grad, weight.grad.conj(), value=1 - second)
            moments["step"] += 1

    def directions(self) -> dict[str, Tensor]:
        """Return m̂ / (√v̂ + ε) of every weight that has moments."""
        if not self._is_adam:
            return {name: _of_adam(moments, _ADAM) for name, moments in self._moments.items()}
        states = {name: state for name in self.trained if (state := self.state(name))}
        return {name: _of_adam(state, self.group) for name, state in states.items()}


class Trajectory(LastStep):
    """PipeMare's correction: s·δ back, where δ_{t+1} = γ·δ_t + (1 − γ)·(W_{t+1} − W_t)."""

    def after_step(self) -> None:
        """Follow the step."""
        for name, weight in self.trained.items():
            step = weight.detach() - self._before[name]
            known = self._step.get(name, torch.zeros_like(step))
            self._step[name] = self.decay * known + (1 - self.decay) * step

    def shifts(self, lead: int) -> dict[str, Tensor]:
        """Return lead · δ; the lead is negative."""
        return {name: lead * trajectory for name, trajectory in self._step.items()}


DIRECTIONS: dict[str, type[Direction]] = {
    "pipeoptim": OfOptimizer,
    "last-step": LastStep,
    "spectrain": Smoothed,
    "xpipe": AdamStep,
    "pipemare": Trajectory,
}
"""By the policy that ``facts.json`` names."""


def _of_adam(state: dict[str, Any], options: Mapping[str, Any]) -> Tensor:
    """Return m̂ / (√v̂ + ε); AMSGrad takes the largest v so far."""
    first, second = options["betas"]
    steps = float(state["step"])
    moment: Tensor = state["exp_avg"] / (1 - first**steps)
    square = state["max_exp_avg_sq" if options["amsgrad"] else "exp_avg_sq"] / (1 - second**steps)
    return moment / (square.sqrt() + options["eps"])
