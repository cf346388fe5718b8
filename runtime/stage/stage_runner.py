"""Running one stage: its forwards, backwards and updates, without any communication."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter
from torch.optim import Optimizer

from drlpp.errors import NotFinite
from drlpp.runtime.device.devices import CPU, to_device
from drlpp.runtime.ipc.run_plan import RunPlan
from drlpp.runtime.stage.gradients import (
    Gradients,
    SharedGradients,
    SingleGradients,
    SumOverReplicas,
)
from drlpp.runtime.stage.losses import Losses
from drlpp.runtime.stage.minibatches import MinibatchSource
from drlpp.runtime.stage.passes.passes import InFlight, Loss, Received, StageValues, as_sent
from drlpp.runtime.stage.passes.precision import passes_in
from drlpp.runtime.stage.passes.randomness import begin_pass
from drlpp.runtime.stage.stages import StageOutput, StageProgram
from drlpp.runtime.weights.optimizers import (
    OptimizerState,
    build_optimizer,
    load_optimizer_state,
    named_optimizer_state,
    state_on,
)
from drlpp.runtime.weights.policies import Weightless, build_policy
from drlpp.runtime.weights.weight_policy import WeightPolicy
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import WeightUse
from drlpp.specs.optimizer_spec import MOMENTUM_OPTIONS, OptimizerSpec

_POLICY_STATE = "weight_policy"


@dataclass
class StageRunner:
    """One stage on one worker.

    Attributes:
        program: the stage.
        state: initial values of all parameters and buffers, by name; copied to ``device``.
        method: the weight policy, and how passes are computed.
        optimizer: what updates the weights, with groups by their names.
        delay: s of this stage in steady state.
        loss: gives the loss from the model's flat outputs and the targets (last stage).
        minibatches: where inputs and targets come from.
        sum_over_replicas: starts a sum over the replicas of the stage, None without replication.
        counts_for_norm: whether this replica's gradients stand for the stage's in a norm over all.
        seed: of dropout.
        first_minibatch: how many minibatches came before this run; dropout continues from there.
        squared_norm: of all stages' gradients for the next update, where it is shared.
        losses: of the parts, on the last stage.
        skipped_updates: of this run, since their gradients were not finite.
        optimizer_state: of an earlier run, by parameter name.
        device: that everything is on; ``program`` and ``loss`` are for it, ``minibatches`` give
            inputs and targets on it.
    """

    program: StageProgram
    state: Mapping[str, Tensor]
    method: Method
    optimizer: OptimizerSpec
    delay: int
    loss: Loss | None
    minibatches: MinibatchSource
    sum_over_replicas: SumOverReplicas | None = None
    counts_for_norm: bool = True
    seed: int = 0
    first_minibatch: int = 0
    optimizer_state: OptimizerState = field(default_factory=dict)
    device: torch.device = CPU

    def __post_init__(self) -> None:
        self.names = self.program.weight_names
        weights = [
            self._copy(name, torch.contiguous_format).requires_grad_() for name in self.names
        ]
        self.buffers = {name: self._copy(name) for name in self.program.buffer_names}
        self.policy = self._build_policy(weights)
        known = {name: dict(state) for name, state in self.optimizer_state.items()}
        policy_state = [known.get(name, {}).pop(_POLICY_STATE, {}) for name in self.names]
        for optimizer, names, own in self._groups():
            load_optimizer_state(optimizer, names, own, known, self._own_options)
        self.policy.load_state([state_on(self.device, state) for state in policy_state])
        self._gradients: Gradients = SingleGradients(weights)
        self.squared_norm: float | None = None
        self._in_flight: dict[MicrobatchId, InFlight] = {}
        self._plan = RunPlan({}, ())
        self.losses = Losses()
        self.peak_weight_bytes = 0
        self.skipped_updates = 0

    def _copy(
        self, name: str, memory_format: torch.memory_format = torch.preserve_format
    ) -> Tensor:
        value = self.state[name].detach()
        return value.to(self.device, copy=True, memory_format=memory_format)

    def _build_policy(self, weights: list[Tensor]) -> WeightPolicy:
        if not weights:
            return Weightless()
        if self.optimizer.groups:
            # Workers load little that they do not need.
            from drlpp.runtime.weights.weight_groups import grouped_policy

            return grouped_policy(self.method, self.names, weights, self.optimizer, self.delay)
        optimizer = build_optimizer(self.optimizer, weights)
        return build_policy(self.method, weights, optimizer, self.delay)

    def _groups(self) -> Iterator[tuple[Optimizer, list[str], list[Tensor]]]:
        """Yield every optimizer of the stage with its parameters and their names."""
        names = {id(weight): name for name, weight in zip(self.names, self.weights, strict=True)}
        for part in self.policy.parts:
            yield part.optimizer, [names[id(weight)] for weight in part.weights], part.weights

    @property
    def _own_options(self) -> frozenset[str]:
        """Options of the optimizer that are this stage's, so no other's in a checkpoint."""
        return frozenset() if self.method.stage_momentum is None else MOMENTUM_OPTIONS

    def begin(self, plan: RunPlan) -> None:
        """Prepare for a run."""
        self._plan = plan
        self.policy.begin(plan.uses, plan.rates, plan.version)
        if plan.shared != isinstance(self._gradients, SharedGradients):
            self._gradients = self._collector(plan.shared)
        self.peak_weight_bytes = 0
        self.skipped_updates = 0
        self._note_weight_bytes()

    def _collector(self, shared: bool) -> Gradients:
        if not shared:
            return SingleGradients(self.weights)
        keep_last = self.policy.reads_last_gradient
        return SharedGradients(self.weights, self.sum_over_replicas, keep_last=keep_last)

    @property
    def bucket_bytes(self) -> int:
        """The bytes of the largest bucket that gradients are summed in, 0 without buckets."""
        return self._gradients.bucket_bytes

    @property
    def weights(self) -> list[Tensor]:
        """The newest weights, in the order of ``names``."""
        return self.policy.weights

    @property
    def reads_data(self) -> bool:
        """Whether this stage needs inputs of the model or targets."""
        return bool(self.program.input_indices) or self.loss is not None

    def wait_for(self, minibatch: int) -> None:
        """Return when what this stage needs of a minibatch is there."""
        if self.reads_data:
            self.minibatches.wait_for(minibatch)

    def forward(self, part: MicrobatchId, received: Received) -> Sequence[Tensor]:
        """Perform the forward pass of ``part``.

        Args:
            part: what is processed.
            received: outputs of earlier stages that this stage reads.

        Returns:
            The outputs of the stage.
        """
        passed = InFlight(received)
        recomputed = part in self._plan.recomputed
        with self.policy.forward_weights(self._use(part)) as weights:
            if part in self._plan.kept and not recomputed and not self.policy.stashes:
                passed.weights = [weight.detach().clone() for weight in weights]
            with torch.set_grad_enabled(not recomputed):
                outputs, loss = self._call(part, received, weights, self.buffers)
        if loss is not None:
            self.losses.add(part, loss)
            if self._plan.finite and (found := self.losses.not_finite):
                minibatch = self.first_minibatch + found[0][0]
                raise NotFinite(
                    f"the loss of minibatch {minibatch + 1} is {found[1]} (counted from 1 since "
                    "training began)",
                    minibatch,
                )
        if not recomputed:
            passed.outputs, passed.loss = outputs, loss
        self._in_flight[part] = passed
        return outputs

    def recompute(self, part: MicrobatchId) -> None:
        """Perform the forward pass of ``part`` once more, with the weights of its backward.

        So a stashed version is used again, a prediction is that for the backward, and PipeMare's
        discrepancy correction is applied (pipemare D.1, where τ_recomp = τ_bkwd).
        """
        passed = self._in_flight[part]
        # Running statistics have seen this part already.
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        with self.policy.backward_weights(self._use(part)) as weights:
            passed.outputs, passed.loss = self._call(part, passed.received, weights, buffers)

    def _use(self, part: MicrobatchId) -> WeightUse:
        return self._plan.uses[part]

    def _call(
        self,
        part: MicrobatchId,
        received: Received,
        weights: Sequence[Tensor],
        buffers: Mapping[str, Tensor],
    ) -> tuple[Sequence[Tensor], Tensor | None]:
        minibatch, microbatch = part
        begin_pass(self.seed, (self.first_minibatch + minibatch, microbatch))
        leaves = {
            key: value.requires_grad_(value.is_floating_point() or value.is_complex())
            for key, value in received.items()
        }
        values = StageValues(
            {index: self.minibatches.input(index, part) for index in self.program.input_indices},
            leaves,
            dict(zip(self.names, weights, strict=True)),
            buffers,
        )
        with passes_in(self.method.precision, self.device):
            outputs = values.call(self.program)
            loss = None
            if self.loss is not None:
                results = values.results(self.program, outputs)
                loss = self.loss(*results, self.minibatches.targets(part))
        return as_sent(self.program, outputs), loss

    def backward(
        self, part: MicrobatchId, gradients: Mapping[int, Tensor], *, last: bool = False
    ) -> dict[StageOutput, Tensor]:
        """Perform the backward pass of ``part`` and add to the gradients of the next update.

        Args:
            part: what is processed.
            gradients: for outputs of this stage (by index) the sum of the gradients that the
                later stages sent, scaled as the loss is.
            last: whether the gradients are summed over the replicas next.

        Returns:
            Gradients of the floating-point tensors that the forward received, scaled the same way.
        """
        passed = self._in_flight.pop(part)
        ends, seeds = passed.ends(gradients, self.method.applied_loss_scale)
        leaves = list(passed.leaves.values())
        found: Sequence[Tensor | None] = [None] * (len(leaves) + len(self.names))
        use = self._use(part)
        with (
            self.policy.backward_weights(use) as weights,
            self._gradients.collecting(weights, last=last),
        ):
            if ends and (leaves or weights):
                found = torch.autograd.grad(ends, [*leaves, *weights], seeds, allow_unused=True)
            self._gradients.add(found[len(leaves) :])
        self.policy.done_with(use)
        return passed.sent_back(found[: len(leaves)])

    def backward_input(
        self, part: MicrobatchId, gradients: Mapping[int, Tensor]
    ) -> dict[StageOutput, Tensor]:
        """Perform the half of a backward that gives the gradients of what the forward received.

        Arguments and result are those of :meth:`backward`.
        """
        # Most workers never split a backward, and begin sooner without it.
        from drlpp.runtime.stage.passes.split_backward import SplitBackward

        passed = self._in_flight[part]
        ends, seeds = passed.ends(gradients, self.method.applied_loss_scale)
        with self.policy.backward_weights(self._use(part)) as weights:
            passed.half_done = SplitBackward(ends, seeds, list(passed.leaves.values()), weights)
        # From here on autograd's graph alone keeps what the other half needs.
        passed.outputs, passed.loss = (), None
        return passed.sent_back(passed.half_done.of_received)

    def backward_weight(self, part: MicrobatchId) -> None:
        """Perform the other half, and add to the gradients of the next update."""
        half_done = self._in_flight.pop(part).half_done
        assert half_done is not None, "the half for inputs comes first"
        use = self._use(part)
        with self.policy.backward_weights(use):
            self._gradients.add(half_done.of_weights())
        self.policy.done_with(use)

    def finish_sum(self) -> None:
        """Wait until the gradients of the next update are summed over the replicas."""
        self._gradients.finish_sum()

    def own_squared_norm(self) -> float:
        """Return what this replica's gradients add to the squared norm over all stages."""
        return self._gradients.squared_norm() if self.counts_for_norm else 0.0

    def update(self, contributions: int) -> None:
        """Update the weights with the mean of the gradients of ``contributions`` parts.

        Where the method skips updates, one whose gradients are not finite changes nothing.
        """
        squared_norm, self.squared_norm = self.squared_norm, None
        if self.method.needs_norm and squared_norm is None:
            squared_norm = self._gradients.squared_norm()
        is_finite = squared_norm is None or math.isfinite(squared_norm)
        if self.method.skips_updates and not is_finite:
            self._gradients.discard()
            self.policy.skip_update()
            self.skipped_updates += 1
        else:
            divisor = contributions * self.method.applied_loss_scale
            self._gradients.assign_gradients(divisor)
            if self.method.clip_norm and squared_norm is not None:
                self._clip(squared_norm**0.5 / divisor)
            self.policy.update()
        # Versions are made here, and what a pass copies is kept until here.
        self._note_weight_bytes()

    def _clip(self, norm: float) -> None:
        """Scale the gradients as ``torch.nn.utils.clip_grad_norm_`` does for this norm."""
        scale = self.method.clip_norm / (norm + 1e-6)
        if scale < 1:
            for weight in self.weights:
                if weight.grad is not None:
                    # Not in place: autograd may give one tensor to two weights, or to a message.
                    weight.grad = weight.grad * scale

    def weights_and_buffers(self) -> dict[str, Tensor]:
        """Return current values by name."""
        weights = zip(self.names, self.weights, strict=True)
        return {name: weight.detach() for name, weight in weights} | self.buffers

    def named_optimizer_state(self) -> OptimizerState:
        """Return the optimizer's state and the weight policy's by parameter name."""
        state: OptimizerState = {}
        for optimizer, names, weights in self._groups():
            state |= named_optimizer_state(optimizer, names, weights, self._own_options)
        for name, known in zip(self.names, self.policy.state(), strict=True):
            if known:
                state[name][_POLICY_STATE] = known
        return state

    @property
    def weight_bytes(self) -> int:
        """The bytes of one version of the stage's weights."""
        return sum(weight.nbytes for weight in self.weights)

    def _note_weight_bytes(self) -> None:
        """Note how much memory holds weights now: the newest, and copies of any version."""
        held = {t.untyped_storage().data_ptr(): t.nbytes for t in self.weights}
        held |= {t.untyped_storage().data_ptr(): t.nbytes for t in self.policy.copies()}
        self.peak_weight_bytes = max(self.peak_weight_bytes, sum(held.values()))

    # Parts in flight, for a checkpoint

    def in_flight_state(self) -> dict[str, Any]:
        """Return all of the parts in flight that :meth:`load_in_flight_state` needs, as plain data.

        Activations inside the stage are not part of it: they are computed again from what was
        received and the weights of the forward, which gives the same bits.
        """
        stashed = self.policy.versions()
        return {
            "gradients": self._gradients.state(),
            "stashed": {v: [leaf.detach() for leaf in kept] for v, kept in stashed.items()},
            "parts": {
                part: {
                    "received": {
                        (key.stage, key.index): value.detach()
                        for key, value in passed.received.items()
                    },
                    "weights": passed.weights,
                }
                for part, passed in self._in_flight.items()
            },
        }

    def load_in_flight_state(self, state: Mapping[str, Any], plan: RunPlan) -> None:
        """Begin a run that continues where :meth:`in_flight_state` was taken."""
        state = to_device(state, self.device)
        self.policy.load_versions(state["stashed"])
        self.begin(plan)
        self._gradients.load_state(state["gradients"])
        for part, known in state["parts"].items():
            received = {StageOutput(*key): value for key, value in known["received"].items()}
            # The next checkpoint may find it in flight still.
            weights = known["weights"] if part in plan.kept else None
            passed = InFlight(received, weights=weights)
            if part not in plan.recomputed:
                passed.outputs, passed.loss = self._replay(part, received, known["weights"])
            self._in_flight[part] = passed

    def _replay(
        self, part: MicrobatchId, received: Received, weights: Sequence[Tensor] | None
    ) -> tuple[Sequence[Tensor], Tensor | None]:
        """Repeat a forward that was made before, with the weights that it had then."""
        buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        if weights is None:
            with self.policy.forward_weights(self._use(part)) as stashed:
                return self._call(part, received, stashed, buffers)
        newest = [weight.detach().clone() for weight in self.weights]
        self._overwrite(weights)
        result = self._call(part, received, self.weights, buffers)
        self._overwrite(newest)
        return result

    def _overwrite(self, values: Sequence[Tensor]) -> None:
        with torch.no_grad(), _unsafe_preserve_version_counter(tuple(self.weights)):
            torch._foreach_copy_(self.weights, list(values))
