"""Training at any depth in one loop: what staleness does to the weights, without a pipeline.

The reference executor performs every action of a schedule. On a straight pipeline nothing but the
versions of the weights depends on their order, so a part is processed here by one forward and one
backward of the whole model, each stage's weights being those that its policy would lend it. That
is several times faster, and the same to rounding, which a test shows for every policy.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor
from torch.autograd import _unsafe_preserve_version_counter

from drlpp.capturing.capture import CapturedModel
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime import Minibatches
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.reference.reference_weights import (
    StageHistory,
    Weights,
)
from drlpp.schedule.analysis.weight_versions import update_rates
from drlpp.schedule.method import Method
from drlpp.specs.data import Samples
from drlpp.specs.optimizer_spec import OptimizerSpec


class Replay:
    """One run of a straight pipeline, from the model's initial weights.

    Args:
        captured: a model without buffers and without random numbers.
        placement: a straight pipeline.
        method: schedule and weight policy.
        optimizer: makes the updates.
        minibatches: where samples come from.
        rates: the learning rate of every minibatch of the run.
        synchronous: minibatches at the beginning that flush before every update (PipeMare's W).
    """

    def __init__(
        self,
        captured: CapturedModel,
        placement: Placement,
        method: Method,
        optimizer: OptimizerSpec,
        minibatches: Minibatches,
        rates: Sequence[float],
        *,
        synchronous: int = 0,
    ) -> None:
        assert max(len(stage.accelerators) for stage in placement.stages) == 1, "it is straight"
        assert not placement.ties(captured.graph), "every stage has weights of its own"
        self._task = captured.task
        self._minibatches = replace(minibatches, microbatches=method.microbatches)
        self._method = method
        plan = ExecutionPlan.of(Candidate(placement, method), captured.graph, len(placement.stages))
        begin, rest = min(synchronous, len(rates)), rates[synchronous:]
        self._legs = [_Leg(plan.synchronous, 0, rates[:begin])] if begin else []
        self._legs += [_Leg(plan, begin, rest)] if rest else []
        # As far back as any part in flight can reach.
        self._reach = 2 * method.accumulate + 2 * (1 + method.minibatches_in_flight(plan.pipeline))
        self._stages = [
            StageHistory(
                {name: captured.state[name] for name in program.weight_names},
                method,
                optimizer,
                delay,
            )
            for program, delay in zip(cut_stages(captured, placement), plan.delays, strict=True)
        ]
        # Of every stage, by the newest version at the forward and how far that looks ahead.
        self._lent: list[dict[tuple[int, int, int], Weights]] = [{} for _ in self._stages]

    def run(self) -> Iterator[float]:
        """Train, and yield the loss of every minibatch after its update."""
        for leg in self._legs:
            yield from self._run(leg)

    def _run(self, leg: _Leg) -> Iterator[float]:
        """Train from an empty pipeline to an empty one."""
        for stage, history in enumerate(self._stages):
            history.begin()
            self._lent[stage].clear()
            self._lend(leg, stage)
        gradients: list[list[Weights]] = [[] for _ in self._stages]
        parts, count = self._method.microbatches, len(leg.base_rates)
        for minibatch in range(count):
            losses = []
            for microbatch in range(parts):
                part = (minibatch, microbatch)
                loss, found = self._gradients(leg, part)
                losses.append(loss)
                for stage, history in enumerate(self._stages):
                    gradients[stage].append(
                        {name: found[name] for name in history.initial if name in found}
                    )
                is_last = part == (count - 1, parts - 1)
                if is_last or len(gradients[0]) == leg.method.parts_of_update(1):
                    self._update(leg, [_mean(contributions) for contributions in gradients])
                    gradients = [[] for _ in self._stages]
            yield sum(losses) / parts

    def evaluate(self, samples: Samples) -> tuple[float, float | None]:
        """Return the loss of the newest weights on other samples, and the score if there is one."""
        task = self._task
        assert task.loss is not None
        with torch.no_grad():
            outputs = torch.func.functional_call(task.module, self.weights, samples.inputs)
            loss = task.loss(outputs, samples.targets).item()
            if task.score is None:
                return loss, None
            return loss, task.score(outputs, samples.targets).float().mean().item()

    @property
    def weights(self) -> Weights:
        """The newest weights of all stages, by name."""
        newest = [history.versions[history.newest] for history in self._stages]
        return {name: weight for weights in newest for name, weight in weights.items()}

    def _gradients(self, leg: _Leg, part: tuple[int, int]) -> tuple[float, Weights]:
        """Return the loss of a part of a leg, and the gradients that all stages compute for it."""
        leaves: Weights = {}
        newer: dict[str, Tensor] = {}
        for stage, history in enumerate(self._stages):
            use = leg.uses[stage][part]
            assert history.newest == use.newest_in_backward, "parts come in order"
            forward = self._lent[stage][use.newest_in_forward, use.stashed, use.forward_lead]
            backward = history.for_backward(use, leg.rates[stage])
            if all(forward[name] is weight for name, weight in backward.items()):
                leaves |= {name: w.detach().requires_grad_() for name, w in forward.items()}
            else:
                leaves |= {name: w.clone().requires_grad_() for name, w in forward.items()}
                newer |= backward
        of_run = (leg.first + part[0], part[1])
        inputs = [self._minibatches.input(i, of_run) for i in range(len(self._task.inputs))]
        outputs = torch.func.functional_call(self._task.module, leaves, tuple(inputs))
        assert self._task.loss is not None
        loss = self._task.loss(outputs, *self._minibatches.targets(of_run))
        # Other weights than the forward's: those that autograd saved are replaced.
        replaced = [leaves[name] for name in newer]
        if replaced:
            with torch.no_grad(), _unsafe_preserve_version_counter(tuple(replaced)):
                torch._foreach_copy_(replaced, list(newer.values()))
        found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
        pairs = zip(leaves, found, strict=True)
        return loss.item(), {name: gradient for name, gradient in pairs if gradient is not None}

    def _update(self, leg: _Leg, gradients: list[Weights]) -> None:
        """Update all stages, and note what later forwards will use."""
        clip = self._method.clip_norm
        norms = [_norm(gradient) for gradient in gradients] if clip else []
        for stage, (history, gradient) in enumerate(zip(self._stages, gradients, strict=True)):
            if clip:
                norm = sum(n**2 for n in norms) ** 0.5 if leg.method.flushes else norms[stage]
                scale = min(clip / (norm + 1e-6), 1.0)
                gradient = {name: value * scale for name, value in gradient.items()}
            rate = leg.rates[stage][history.newest]
            history.update(gradient, rate, history.newest - self._reach)
            self._lend(leg, stage)

    def _lend(self, leg: _Leg, stage: int) -> None:
        """Keep what forwards at the newest version use; drop what no part needs any more."""
        history, lent = self._stages[stage], self._lent[stage]
        for stashed, lead in leg.wanted[stage].get(history.newest, ()):
            use = replace(leg.first_part[stage][history.newest], stashed=stashed, forward_lead=lead)
            lent[history.newest, stashed, lead] = history.for_forward(use, leg.rates[stage])
        for key in [key for key in lent if key[0] < history.newest - self._reach]:
            del lent[key]


class _Leg:
    """A part of a run, from an empty pipeline to an empty one; all is counted anew in it.

    Args:
        plan: what is run.
        first: minibatches before it.
        base_rates: the learning rate of every minibatch of it.
    """

    def __init__(self, plan: ExecutionPlan, first: int, base_rates: Sequence[float]) -> None:
        self.method = plan.method
        self.first = first
        self.base_rates = base_rates
        workers = [replicas[0] for replicas in plan.pipeline.stages]
        schedule = plan.schedule(len(base_rates))
        uses = plan.weight_uses(len(base_rates))
        self.uses = [uses[worker] for worker in workers]
        self.rates = [update_rates(schedule, worker, plan.method, base_rates) for worker in workers]
        self.wanted: list[dict[int, set[tuple[int, int]]]] = []
        for stage_uses in self.uses:
            wanted = defaultdict(set)
            for use in stage_uses.values():
                wanted[use.newest_in_forward].add((use.stashed, use.forward_lead))
            self.wanted.append(wanted)
        self.first_part = [
            {use.newest_in_forward: use for use in stage_uses.values()} for stage_uses in self.uses
        ]


def _mean(contributions: Sequence[Weights]) -> Weights:
    if len(contributions) == 1:
        return contributions[0]
    names = [name for name in contributions[0] if all(name in part for part in contributions)]
    return {name: torch.stack([part[name] for part in contributions]).mean(0) for name in names}


def _norm(gradient: Weights) -> float:
    return sum(value.double().square().sum().item() for value in gradient.values()) ** 0.5
