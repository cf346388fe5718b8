"""The reference executor: one process, no communication, every version of the weights kept.

It replays the same schedule as the workers, with the formulas of the papers written down plainly
(:mod:`drlpp.runtime.reference.reference_weights`) and nothing fused, cached or overlapped. It is
the oracle of the runtime: after N minibatches the workers' weights must equal its weights to
rounding. Since it needs no worker for a stage, it also trains at depths that this machine has no
accelerators for.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from torch import Tensor

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.deployment import RunOptions
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.reference.reference_weights import DelayedGradients, RandomDelays, StageHistory
from drlpp.runtime.reference.replay import ReferenceStage, Replay
from drlpp.runtime.stage.minibatches import Minibatches
from drlpp.runtime.stage.stages import StageProgram
from drlpp.schedule.actions import MicrobatchId
from drlpp.schedule.analysis.weight_versions import stage_delay
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec, settled


@dataclass(frozen=True)
class ReferenceResult:
    """All parameters and buffers by name, the loss of every part, every stage's skipped updates."""

    state: dict[str, Tensor]
    losses: dict[MicrobatchId, float]
    skipped_updates: tuple[int, ...]


def run_reference(
    captured: CapturedModel,
    placement: Placement,
    minibatches: Minibatches,
    count: int,
    *,
    method: Method,
    optimizer: OptimizerSpec,
    seed: int = 0,
    options: RunOptions | None = None,
    delays: RandomDelays | None = None,
) -> ReferenceResult:
    """Train on ``count`` minibatches as ``placement`` would, in this process."""
    executor = ReferenceExecutor(captured, placement, minibatches, method, optimizer, seed, delays)
    losses = executor.run(count, options)
    return ReferenceResult(executor.state(), losses, executor.skipped_updates)


class ReferenceExecutor:
    """A placement in this process, which can be run several times, the pipeline empty in between.

    Args:
        captured: the model.
        placement: valid for it.
        minibatches: where samples come from.
        method: schedule and weight policy.
        optimizer: makes the updates.
        seed: of dropout.
        delays: let every gradient that a stage computes be applied after a random delay, on top of
            what the method itself delays; with a method that flushes this is Hogwild-style
            asynchrony (pipemare, appendix E).

    Attributes:
        plan: of the placement.
        minibatches: where samples come from.
        stages: in order, with their weights so far.
        buffers: of every worker, by name.
        rate: the optimizer's learning rate.
        seed: of dropout.
        round_trip: minibatches in flight, and one more.
    """

    def __init__(
        self,
        captured: CapturedModel,
        placement: Placement,
        minibatches: Minibatches,
        method: Method,
        optimizer: OptimizerSpec,
        seed: int = 0,
        delays: RandomDelays | None = None,
    ) -> None:
        self._captured = captured
        optimizer = settled(optimizer, captured.trained, captured.aliases)
        accelerators = 1 + max(placement.accelerators, default=-1)
        self.plan = ExecutionPlan.of(Candidate(placement, method), captured.graph, accelerators)
        self.minibatches = replace(minibatches, microbatches=method.microbatches)
        programs = cut_stages(captured.microbatch(method.microbatches), placement)
        self.rate, self.seed = optimizer.rate, seed
        self.round_trip = 1 + method.minibatches_in_flight(self.plan.pipeline)
        # Counted, where workers have a formula for it.
        steady = self.plan.schedule(2 * self.round_trip * method.accumulate)
        stage_delays = [stage_delay(steady, stage) for stage in range(len(programs))]
        tied_delays = {tie: stage_delay(steady, tie.root, tie) for tie in self.plan.ties}
        if delays and tied_delays:
            raise InvalidInput(
                "random delays are for stages that share no parameter; put the operators that "
                "share one into one stage"
            )
        values = captured.state | captured.constants

        def history(names: Collection[str], delay: int) -> StageHistory:
            initial = {name: captured.state[name] for name in names}
            return StageHistory(initial, method, optimizer, delay)

        def alone(program: StageProgram) -> list[str]:
            tied = {name for names in program.ties.values() for name in names}
            return [name for name in program.weight_names if name not in tied]

        self.stages = [
            ReferenceStage(
                program,
                history(alone(program), delay),
                DelayedGradients(delays, stage) if delays else None,
                tied={
                    tie.number: {
                        worker: history(program.ties[tie.number], tied_delay)
                        for worker in self.plan.pipeline.stages[stage]
                    }
                    for tie, tied_delay in tied_delays.items()
                    if stage in tie.stages
                },
            )
            for stage, (program, delay) in enumerate(zip(programs, stage_delays, strict=True))
        ]
        self.buffers = {
            worker: {
                name: values[name].clone()
                for stage in self.plan.pipeline.stages_of(worker)
                for name in programs[stage].buffer_names
            }
            for worker in self.plan.pipeline.workers
        }

    @property
    def skipped_updates(self) -> tuple[int, ...]:
        """Updates of every stage so far, whose gradients were not finite in float16."""
        return tuple(stage.skipped_updates for stage in self.stages)

    def run(self, count: int, options: RunOptions | None = None) -> dict[MicrobatchId, float]:
        """Train on ``count`` minibatches and return the loss of every part."""
        options = options or RunOptions()
        plan = self.plan.synchronous if options.synchronous else self.plan
        return Replay(self, plan, count, options).run()

    def state(self) -> dict[str, Tensor]:
        """Return all parameters and buffers by name; of replicas, the first one's buffers."""
        state = dict(self._captured.state)
        for stage, replicas in zip(self.stages, self.plan.pipeline.stages, strict=True):
            found = dict(self.buffers[replicas[0]])
            for history in stage.histories:
                found |= history.weights
            state |= {name: value for name, value in found.items() if name in state}
        for alias, name in self._captured.aliases.items():
            state[alias] = state[name]
        return state
