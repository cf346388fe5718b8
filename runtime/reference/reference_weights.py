"""The weights of one stage in the reference executor: every version, and the papers' formulas.

The counts of :mod:`drlpp.schedule.analysis.weight_versions` are shared with the workers' weight
policies, and have tests of their own; nothing else is. Each formula is written as the paper has it,
from gradients and versions that are kept, where the workers read an optimizer's state.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from drlpp.runtime.stage.stages import StageProgram
from drlpp.runtime.weights.optimizers import build_optimizer
from drlpp.schedule.method import Method
from drlpp.schedule.ties import Tie
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import GroupMembers, OptimizerSpec, divided

Weights = dict[str, Tensor]

_WITH_TWO_MOMENTS = {"adam", "adamw", "nadam", "radam", "adamax"}


@dataclass
class StageHistory:
    """A stage with its history. Replicas share it, as their updates are the same.

    Attributes:
        initial: the weights that training begins with, by name.
        method: says which formula applies.
        optimizer: makes the updates, with groups by the names of parameters.
        delay: s of the stage in steady state.
        versions: all versions of this run that are still needed.
        newest: the number of the last of them.
    """

    initial: Weights
    method: Method
    optimizer: OptimizerSpec
    delay: int
    versions: dict[int, Weights] = field(default_factory=dict)
    newest: int = 0

    def __post_init__(self) -> None:
        self._groups = [
            _Group(members, self.initial, self.method.policy)
            for members in divided(self.optimizer, self.initial)
        ]
        self._trajectory = {name: torch.zeros_like(w) for name, w in self.initial.items()}
        self.versions = {0: {name: w.detach().clone() for name, w in self.initial.items()}}

    @property
    def weights(self) -> Weights:
        """The newest weights by name."""
        return self.versions[self.newest]

    def begin(self) -> None:
        """Begin a run with an empty pipeline: its versions are numbered from 0."""
        self.versions, self.newest = {0: self.weights}, 0

    # Which weights a pass uses

    def for_forward(self, use: WeightUse, rates: Sequence[float]) -> Weights:
        """Return the weights of a forward."""
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
        weights = self.versions[version]
        if not lead:
            return weights
        ahead = [rates[min(version + step, len(rates) - 1)] for step in range(lead)]
        return {
            name: weights[name] - sum(group.members.rates(ahead)) * group.direction(name)
            for group in self._groups
            for name in group.members.names
        }

    # Updates

    def update(self, gradient: Weights, rate: float, needed_from: int) -> None:
        """Compute W_{t+1} by torch's own optimizers, and what the formulas need to know of it.

        Args:
            gradient: the mean over all contributions, of the weights that have one.
            rate: the learning rate of parameters in no group.
            needed_from: versions before this one are not needed any more.
        """
        after: Weights = {}
        for group in self._groups:
            after |= group.updated(gradient, rate, self.weights)
        self._add_version(after, needed_from)

    def skip_update(self, needed_from: int) -> None:
        """Set W_{t+1} = W_t; the directions of the formulas stay those of the last step."""
        self._add_version(dict(self.weights), needed_from)

    def _add_version(self, after: Weights, needed_from: int) -> None:
        if self.method.policy == "pipemare" and self.method.correction_decay and self.delay:
            # γ = D^{1/(τ_fwd − τ_bkwd)}
            decay = self.method.correction_decay ** (1 / self.delay)
            for name in after:
                step = after[name] - self.weights[name]
                self._trajectory[name] = decay * self._trajectory[name] + (1 - decay) * step
        self.newest += 1
        self.versions[self.newest] = after
        for version in [v for v in self.versions if v < needed_from]:
            del self.versions[version]


class _Group:
    """Weights that one of torch's optimizers updates, without fused kernels; and Table I for it."""

    def __init__(self, members: GroupMembers, initial: Weights, policy: str) -> None:
        self.members = members
        self._policy, self._name = policy, members.optimizer.name
        self._options = members.optimizer.complete
        # XPipe predicts by Adam's moments of the gradients, whatever the optimizer.
        self._is_adam = self._name in {"adam", "adamw"}
        self._as_if_adam = policy == "xpipe" and not self._is_adam
        usual: dict[str, Any] = {"betas": (0.9, 0.999), "eps": 1e-8}
        of_moments = usual if self._as_if_adam else usual | self._options
        self._betas, self._eps = of_moments["betas"], of_moments["eps"]
        own = {name: initial[name] for name in members.names}
        self._leaves = {n: w.detach().clone().requires_grad_() for n, w in own.items()}
        leaves = list(self._leaves.values())
        self._torch = build_optimizer(members.optimizer, leaves, fused=False)
        self._rate = members.rate
        zeros = {name: torch.zeros_like(weight) for name, weight in own.items()}
        self._momentum: Weights = dict(zeros)
        self._moments: tuple[Weights, Weights] = (dict(zeros), dict(zeros))
        self._largest: Weights = dict(zeros)
        self._applied_step: Weights = dict(zeros)
        self._steps = dict.fromkeys(own, 0)

    def updated(self, gradient: Weights, rate: float, before: Weights) -> Weights:
        """Return W_{t+1} of these weights, made from W_t at their multiple of ``rate``."""
        (self._rate,) = self.members.rates([rate])
        for name, leaf in self._leaves.items():
            leaf.grad = gradient[name].clone() if name in gradient else None
            if name in gradient:
                self._follow(name, gradient[name], before[name])
        for options in self._torch.param_groups:
            options["lr"] = self._rate
        self._torch.step()
        after = {name: leaf.detach().clone() for name, leaf in self._leaves.items()}
        self._applied_step = {name: before[name] - after[name] for name in after}
        return after

    def direction(self, name: str) -> Tensor:
        """Return what the policy takes for ΔW_t (pipeoptim eq. 6 and Table I).

        Where it has no rule for the optimizer that is the last step, (W_{t−1} − W_t) / lr.
        """
        options = self._options
        match self._policy, self._name:
            case "pipeoptim", "sgd" if options["momentum"] and not options["nesterov"]:
                return self._momentum[name]
            case "spectrain", "sgd" if options["momentum"]:
                return self._momentum[name]
            case ("pipeoptim", "adam" | "adamw") | ("xpipe", _):
                return self._adam(name)
            case "spectrain", of_two if of_two in _WITH_TWO_MOMENTS:
                return self._moments[0][name]
            case "spectrain", _:
                state = self._torch.state[self._leaves[name]]
                for moment in ("momentum_buffer", "exp_avg"):
                    if moment in state:
                        return state[moment]
        return self._applied_step[name] / (self._rate or 1.0)

    def _adam(self, name: str) -> Tensor:
        """Return m̂ / (√v̂ + ε), zero before any step."""
        first, second = (moment[name] for moment in self._moments)
        if self._is_adam and self._options["amsgrad"]:
            second = self._largest[name]
        if not (steps := self._steps[name]):
            return torch.zeros_like(first)
        beta1, beta2 = self._betas
        unbiased = second / (1 - beta2**steps)
        return first / (1 - beta1**steps) / (unbiased.sqrt() + self._eps)

    def _follow(self, name: str, gradient: Tensor, before: Tensor) -> None:
        """Update the moving averages of Table I, as far as the policy predicts with them.

        m_t = β1 · m_{t−1} + (1 − β1) · g_t and v_t = β2 · v_{t−1} + (1 − β2) · g_t².
        """
        self._steps[name] += 1
        if self._policy not in {"pipeoptim", "spectrain", "xpipe"}:
            return
        decoupled = self._name == "adamw" or self._options.get("decoupled_weight_decay", False)
        if not (decoupled or self._as_if_adam):
            gradient = gradient + self._options.get("weight_decay", 0.0) * before
        if self._as_if_adam or self._name in _WITH_TWO_MOMENTS:
            (first, second), (beta1, beta2) = self._moments, self._betas
            first[name] = beta1 * first[name] + (1 - beta1) * gradient
            second[name] = beta2 * second[name] + (1 - beta2) * gradient * gradient.conj()
            if self._options.get("amsgrad"):
                self._largest[name] = torch.maximum(self._largest[name], second[name])
        elif self._name == "sgd":
            kept = 1.0 if self._steps[name] == 1 else 1 - self._options["dampening"]
            momentum = self._options["momentum"]
            self._momentum[name] = momentum * self._momentum[name] + kept * gradient


@dataclass
class DelayedGradients:
    """The gradients of a stage on their way to its weights, with random τ_i (pipemare eq. 16).

    w_{i,t+1} = w_{i,t} − α · [∇f_{t−τ_i}(w_{t−τ_i})]_i. τ_i follows an exponential distribution
    that is truncated and rounded down to whole updates.

    Attributes:
        scale: the expectation of the distribution before truncation, in updates; 0 for no delay.
        longest: no delay is longer, in updates; all stages should have the same.
        annealing_minibatches: K of learning-rate rescheduling (T1), with the expected delay plus
            one as τ_i; 0 leaves it out.
        seed: of the delays; that of every stage should be another.
    """

    scale: float
    longest: int
    annealing_minibatches: int = 0
    seed: int = field(kw_only=True)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._computed: deque[Weights] = deque(maxlen=self.longest + 1)
        self._updates = 0

    def next(self, computed: Weights) -> tuple[Weights, float]:
        """Return the gradient that arrives when ``computed`` is sent off, and its T1 factor.

        That is 1 / τ_i^{p_k} (pipemare eq. 4).
        """
        self._computed.append(computed)
        delay = min(self.draw(), len(self._computed) - 1)
        annealing, factor = self.annealing_minibatches, 1.0
        if annealing:
            power = 1 - min(self._updates / annealing, 1.0)
            factor = (1 + self.scale) ** -power
        self._updates += 1
        return self._computed[-1 - delay], factor

    def draw(self) -> int:
        """Draw the next delay, between 0 and the longest."""
        if not self.scale or not self.longest:
            return 0
        # The inverse of the distribution function on what is left of it by the truncation.
        below = 1 - math.exp(-(self.longest + 1) / self.scale)
        return min(int(-self.scale * math.log(1 - self._random.random() * below)), self.longest)


Histories = Mapping[Tie | None, Mapping[int, StageHistory]]


@dataclass
class ReferenceStage:
    """A stage between two runs.

    Attributes:
        program: what computes it.
        histories: of its own weights (None), which replicas share, and of its copies of those that
            other stages hold too, by tie and worker: not all make an update at the same time.
        arriving: its gradients under way, if they are delayed at random.
        skipped_updates: so far, whose gradients were not finite in float16.
    """

    program: StageProgram
    histories: Histories
    arriving: DelayedGradients | None
    skipped_updates: int = 0
