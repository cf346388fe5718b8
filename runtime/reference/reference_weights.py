"""The weights of one stage in the reference executor: every version, and the papers' formulas.

The counts of :mod:`drlpp.schedule.analysis.weight_versions` are shared with the workers' weight
policies, and have tests of their own; nothing else is. Each formula is written as the paper has it,
from gradients and versions that are kept, where the workers read an optimizer's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import OptimizerSpec

Weights = dict[str, Tensor]

_WITH_TWO_MOMENTS = {"adam", "adamw", "nadam", "radam", "adamax"}


@dataclass
class StageHistory:
    """A stage with its history. Replicas share it, as their updates are the same.

    Attributes:
        initial: the weights that training begins with, by name.
        method: says which formula applies.
        optimizer: makes the updates; torch's own, without fused kernels.
        delay: s of the stage in steady state.
        versions: all versions of this run that are still needed.
    """

    initial: Weights
    method: Method
    optimizer: OptimizerSpec
    delay: int
    versions: dict[int, Weights] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._options = self.optimizer.complete
        self._newest = {n: w.detach().clone().requires_grad_() for n, w in self.initial.items()}
        self._torch = (
            build_optimizer(self.optimizer, list(self._newest.values()), fused=False)
            if self._newest
            else None
        )
        self._rate = float(self._options["lr"])
        zeros = {name: torch.zeros_like(w) for name, w in self.initial.items()}
        self._momentum: Weights = dict(zeros)
        self._moments: tuple[Weights, Weights] = (dict(zeros), dict(zeros))
        self._largest: Weights = dict(zeros)
        self._xpipe_moments: tuple[Weights, Weights] = (dict(zeros), dict(zeros))
        self._trajectory: Weights = dict(zeros)
        self._applied_step: Weights = dict(zeros)
        self._steps = dict.fromkeys(self.initial, 0)
        self.begin()

    def begin(self) -> None:
        """Begin a run with an empty pipeline: its versions are numbered from 0."""
        self.versions = {0: self._copy_of_newest()}
        self.newest = 0

    def take_over(self, other: StageHistory) -> None:
        """Continue from what another history, of the same training, has of the same weights."""
        shared = self.initial.keys() & other.initial.keys()
        for name in shared:
            self._newest[name].data = other._newest[name].detach().clone()
            if self._torch is not None and other._torch is not None:
                state = other._torch.state.get(other._newest[name], {})
                self._torch.state[self._newest[name]] = deepcopy(dict(state))
        ours, theirs = self._averages(), other._averages()
        for mine, known in zip(ours, theirs, strict=True):
            mine |= {name: known[name].clone() for name in shared & known.keys()}
        self._steps |= {name: other._steps[name] for name in shared}
        if shared:
            self._rate = other._rate
        self.begin()

    def _averages(self) -> tuple[Weights, ...]:
        """Return what the formulas know of every weight from one update to the next."""
        return (
            self._momentum,
            *self._moments,
            self._largest,
            *self._xpipe_moments,
            self._trajectory,
            self._applied_step,
        )

    def _copy_of_newest(self) -> Weights:
        return {name: weight.detach().clone() for name, weight in self._newest.items()}

    # Which weights a pass uses

    def for_forward(self, use: WeightUse, rates: Sequence[float]) -> Weights:
        """Return the weights of a forward; ``rates`` are those of the updates of this run."""
        match self.method.policy:
            case "stash" | "stash-vertical" | "2bw":
                return self.versions[use.stashed]
            case "pipeoptim" | "last-step" | "spectrain" | "xpipe":
                return self._predicted(use.newest_in_forward, use.forward_lead, rates)
            case "sync" | "vanilla" | "pipemare":
                return self.versions[use.newest_in_forward]
        raise NotImplementedError(f"the reference has no formula for {self.method.policy}")

    def for_backward(self, use: WeightUse, rates: Sequence[float]) -> Weights:
        """Return the weights of a backward, and of a recomputation."""
        newest = self.versions[use.newest_in_backward]
        match self.method.policy:
            case "stash" | "stash-vertical" | "2bw":
                return self.versions[use.stashed]
            case "pipeoptim" | "last-step" | "spectrain" | "xpipe":
                return self._predicted(use.newest_in_backward, use.backward_lead, rates)
            case "pipemare" if self.method.correction_decay:
                # T2: u_bkwd = w_{t−τ_bkwd} − (τ_fwd − τ_bkwd) · δ_t (pipemare §3.2)
                difference = use.newest_in_backward - use.newest_in_forward
                return {n: w - difference * self._trajectory[n] for n, w in newest.items()}
            case _:
                return newest

    def _predicted(self, version: int, lead: int, rates: Sequence[float]) -> Weights:
        """Return pipeoptim eq. 6, with the rates of the ``lead`` updates after ``version``."""
        assert version == self.newest
        ahead = [rates[min(version + step, len(rates) - 1)] for step in range(lead)]
        directions = {
            "pipeoptim": self._pipeoptim_direction,
            "last-step": self._last_step,
            "spectrain": self._spectrain_direction,
            "xpipe": self._xpipe_direction,
        }[self.method.policy]
        return {
            name: weight - sum(ahead) * directions(name) if lead else weight
            for name, weight in self.versions[version].items()
        }

    def _pipeoptim_direction(self, name: str) -> Tensor:
        """Return ΔW_t of Table I; for other optimizers that of the last step."""
        match self.optimizer.name:
            case "sgd" if self._options["momentum"] and not self._is_nesterov:
                return self._momentum[name]
            case "adam" | "adamw":
                return self._own_adam(name)
            case _:
                return self._last_step(name)

    def _last_step(self, name: str) -> Tensor:
        """Return (W_{t−1} − W_t) / lr."""
        return self._applied_step[name] / (self._rate or 1.0)

    def _spectrain_direction(self, name: str) -> Tensor:
        """Return m, the smoothed gradients; else the first moment, or that of the last step."""
        if self.optimizer.name == "sgd" and self._options["momentum"]:
            return self._momentum[name]
        if self.optimizer.name in _WITH_TWO_MOMENTS:
            return self._moments[0][name]
        assert self._torch is not None
        state = self._torch.state[self._newest[name]]
        for moment in ("momentum_buffer", "exp_avg"):
            if moment in state:
                return state[moment]
        return self._last_step(name)

    def _xpipe_direction(self, name: str) -> Tensor:
        """Return Adam's step, from the optimizer's moments if it is Adam, else by the defaults."""
        if self.optimizer.name in {"adam", "adamw"}:
            return self._own_adam(name)
        return self._adam(self._xpipe_moments, name, (0.9, 0.999), 1e-8)

    def _own_adam(self, name: str) -> Tensor:
        """Return Adam's step by the optimizer; AMSGrad takes the largest second moment so far."""
        first, second = self._moments
        moments = (first, self._largest if self._options["amsgrad"] else second)
        return self._adam(moments, name, self._betas, self._options["eps"])

    def _adam(
        self, moments: tuple[Weights, Weights], name: str, betas: tuple[float, float], eps: float
    ) -> Tensor:
        """Return m̂ / (√v̂ + ε), zero before any step."""
        steps = self._steps[name]
        if not steps:
            return torch.zeros_like(moments[0][name])
        first = moments[0][name] / (1 - betas[0] ** steps)
        second = moments[1][name] / (1 - betas[1] ** steps)
        return first / (second.sqrt() + eps)

    @property
    def _is_nesterov(self) -> bool:
        return bool(self._options["nesterov"])

    @property
    def _decay_is_decoupled(self) -> bool:
        return bool(
            self.optimizer.name == "adamw" or self._options.get("decoupled_weight_decay", False)
        )

    @property
    def _betas(self) -> tuple[float, float]:
        first, second = self._options["betas"]
        return first, second

    # Updates

    def update(self, gradient: Weights, rate: float, needed_from: int) -> None:
        """Compute W_{t+1} by torch's own optimizer, and what the formulas need to know of it.

        Args:
            gradient: the mean over all contributions, of the weights that have one.
            rate: the learning rate.
            needed_from: versions before this one are not needed any more.
        """
        before = self.versions[self.newest]
        for name in gradient:
            self._follow(name, gradient[name], before[name])
        if self._torch is not None:
            for name, weight in self._newest.items():
                weight.grad = gradient[name].clone() if name in gradient else None
            for group in self._torch.param_groups:
                group["lr"] = rate
            self._torch.step()
        self._rate = rate
        after = self._next_version(needed_from)
        self._applied_step = {name: before[name] - after[name] for name in after}

    def skip_update(self, needed_from: int) -> None:
        """Set W_{t+1} = W_t; the directions of the formulas stay those of the last step."""
        self._next_version(needed_from)

    def _next_version(self, needed_from: int) -> Weights:
        before = self.versions[self.newest]
        self.newest += 1
        after = self.versions[self.newest] = self._copy_of_newest()
        if self.method.policy == "pipemare" and self.method.correction_decay and self.delay:
            # γ = D^{1/(τ_fwd − τ_bkwd)}
            decay = self.method.correction_decay ** (1 / self.delay)
            for name in after:
                step = after[name] - before[name]
                self._trajectory[name] = decay * self._trajectory[name] + (1 - decay) * step
        for version in [v for v in self.versions if v < needed_from]:
            del self.versions[version]
        return after

    def _follow(self, name: str, gradient: Tensor, before: Tensor) -> None:
        """Update the moving averages of Table I, as far as the policy predicts with them."""
        self._steps[name] += 1
        if self.method.policy == "xpipe" and self.optimizer.name not in {"adam", "adamw"}:
            _average(self._xpipe_moments, name, gradient, (0.9, 0.999))
        if self.method.policy not in {"pipeoptim", "spectrain", "xpipe"}:
            return
        if not self._decay_is_decoupled:
            gradient = gradient + self._options.get("weight_decay", 0.0) * before
        if self.optimizer.name == "sgd":
            kept = 1.0 if self._steps[name] == 1 else 1 - self._options["dampening"]
            momentum = self._options["momentum"]
            self._momentum[name] = momentum * self._momentum[name] + kept * gradient
        elif self.optimizer.name in _WITH_TWO_MOMENTS:
            _average(self._moments, name, gradient, self._betas)
            if self._options.get("amsgrad"):
                largest = torch.maximum(self._largest[name], self._moments[1][name])
                self._largest[name] = largest


def _average(
    moments: tuple[Weights, Weights], name: str, gradient: Tensor, betas: tuple[float, float]
) -> None:
    """Set m_t = β1 · m_{t−1} + (1 − β1) · g_t and v_t = β2 · v_{t−1} + (1 − β2) · g_t²."""
    (first, second), (beta1, beta2) = moments, betas
    first[name] = beta1 * first[name] + (1 - beta1) * gradient
    second[name] = beta2 * second[name] + (1 - beta2) * gradient * gradient.conj()
