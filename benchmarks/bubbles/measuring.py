"""Timing updates of schedules that flush, this runtime's and torch's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from benchmarks.bubbles.pass_times import PassTimes
from benchmarks.models import BLOCKS, placement_of, reference
from benchmarks.torch_processes import BaselineProcesses
from benchmarks.torch_training import BaselineName, BaselineRun
from drlpp.capturing.capture import capture
from drlpp.models.task import Option
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession
from drlpp.schedule.actions import Pass, Update
from drlpp.schedule.analysis.window import completion_times
from drlpp.schedule.kinds.registry import find_schedule_kind
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import SYNC
from drlpp.specs.optimizer_spec import OptimizerSpec

_WARM_UP_UPDATES = 2


@dataclass(frozen=True)
class Contender:
    """A schedule of this runtime, by its name, or one of torch's; a worker has ``held`` stages."""

    ours: str | None = None
    theirs: BaselineName | None = None
    held: int = 1

    def __str__(self) -> str:
        return self.ours or f"torch {self.theirs}"


OF_TORCH = {
    Contender(ours="1f1b-flush"): Contender(theirs="pipelining 1f1b"),
    Contender(ours="zb-h1"): Contender(theirs="pipelining zb1p"),
    Contender(ours="zb-v", held=2): Contender(theirs="pipelining zbv", held=2),
}
"""Torch's own schedule of the same kind, by ours."""

CONTENDERS = (
    *chain.from_iterable(OF_TORCH.items()),
    Contender(theirs="pipelining interleaved 1f1b", held=2),
)
"""In the order of their turns: who is compared follows each other, so that both had one machine."""


@dataclass(frozen=True)
class Sample:
    """One run of a contender, in seconds of an update.

    Attributes:
        seconds: from one update to the next, in steady state.
        busiest_seconds: what the busiest worker computes for it.
        expected_bubble_seconds: by the papers' formula, with the times that passes took in the run;
            None of torch's, whose passes are not timed apart.
        simulated_seconds: ``seconds`` by the simulator, with the same times; None likewise.
    """

    seconds: float
    busiest_seconds: float
    expected_bubble_seconds: float | None = None
    simulated_seconds: float | None = None

    @property
    def bubble(self) -> float:
        """What the busiest worker waits for each second that it computes."""
        return self.seconds / self.busiest_seconds - 1


@dataclass(frozen=True)
class Bench:
    """Emulated accelerators on which contenders take turns."""

    session: ClusterSession
    processes: BaselineProcesses
    speed: float
    optimizer: OptimizerSpec

    def sample(self, contender: Contender, microbatches: int, updates: int) -> Sample:
        """Run a contender.

        Raises:
            RunFailure: if it cannot be run.
        """
        stages = self.session.accelerators * contender.held
        blocks = [BLOCKS // stages] * stages
        if contender.ours is not None:
            return self._ours(contender.ours, blocks, microbatches, updates)
        assert contender.theirs is not None
        run = BaselineRun(
            name=contender.theirs,
            model=self.session.captured.reference,
            blocks=tuple(blocks),
            microbatches=microbatches,
            optimizer=self.optimizer,
            updates=_WARM_UP_UPDATES + updates,
        )
        results = self.processes.run(run)
        ends = [max(together) for together in zip(*(r.ends for r in results), strict=True)]
        busiest = max(sum(r.processor_seconds[_WARM_UP_UPDATES:]) for r in results) / self.speed
        return Sample((ends[-1] - ends[_WARM_UP_UPDATES - 1]) / updates, busiest / updates)

    def _ours(self, kind: str, blocks: list[int], microbatches: int, updates: int) -> Sample:
        method = Method(schedule=kind, policy=SYNC.name, microbatches=microbatches)
        placement = placement_of(self.session.graph, blocks, [1] * len(blocks))
        if find_schedule_kind(kind).stages_held > 1:
            placement = folded(placement)
        candidate = Candidate(placement, method)
        deployment = self.session.deploy(candidate, optimizer=self.optimizer)
        schedule, results = self.session.run(deployment, _WARM_UP_UPDATES + updates)
        ends = {worker: [end for _, end in result.times] for worker, result in results.items()}
        complete = completion_times(schedule, ends)
        busy, passes = [], PassTimes()
        for worker, result in results.items():
            held, computed = schedule.pipeline.stages_of(worker), 0.0
            for action, seconds in zip(
                schedule.actions[worker], result.processor_seconds, strict=True
            ):
                if isinstance(action, Pass) and action.minibatch >= _WARM_UP_UPDATES:
                    passes.passes[held[action.chunk], type(action)].append(seconds / self.speed)
                    computed += seconds / self.speed
                elif isinstance(action, Update) and action.through > _WARM_UP_UPDATES:
                    passes.updates[worker].append(seconds / self.speed)
                    computed += seconds / self.speed
            busy.append(computed)
        return Sample(
            seconds=(complete[-1] - complete[_WARM_UP_UPDATES - 1]) / updates,
            busiest_seconds=max(busy) / updates,
            expected_bubble_seconds=passes.bubble_of_zb_v(self.session.accelerators, microbatches)
            if placement.is_folded
            else passes.bubble(self.session.accelerators),
            simulated_seconds=passes.simulated_seconds(self.session.graph, candidate),
        )


def folded(placement: Placement) -> Placement:
    """Return the same stages, two on each accelerator, there and back."""
    last = len(placement.stages) - 1
    return Placement(
        stages=tuple(
            stage.model_copy(update={"accelerators": (min(number, last - number),)})
            for number, stage in enumerate(placement.stages)
        )
    )


@contextmanager
def bench(model: str, options: dict[str, Option], stages: int, speed: float) -> Iterator[Bench]:
    """Yield accelerators of this speed, in cores, one for each stage."""
    speeds, optimizer = [speed] * stages, OptimizerSpec()
    captured = capture(reference(model, options))
    with (
        ClusterSession(captured, stages, optimizer=optimizer, speeds=speeds) as session,
        BaselineProcesses(speeds) as processes,
    ):
        yield Bench(session, processes, speed, optimizer)
