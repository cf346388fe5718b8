"""Running contenders on emulated accelerators: a session's workers and torch's processes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from benchmarks.emulated_cluster import control_groups
from benchmarks.emulated_cluster.control_groups import check_quotas
from benchmarks.models import placement_of, reference
from benchmarks.runtime_speed.samples import Case, Contender, Settings
from benchmarks.torch_processes import BaselineProcesses
from benchmarks.torch_training import BaselineName, BaselineRun
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidCluster, RunFailure
from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.placement import Placement
from drlpp.runtime import ClusterSession, Minibatches, run_reference
from drlpp.runtime.device.emulation import MOST_LOAD, available_cores, cores_for
from drlpp.schedule.method import Method
from drlpp.specs.optimizer_spec import OptimizerSpec

_CHECKED_ROUNDS = 3
"""Updates per stage that weights are compared after: stages of 1F1B fall behind by one each."""
_WARM_UP_UPDATES = 2


@dataclass(frozen=True)
class SideBySide:
    """A cluster of emulated accelerators that contenders take turns on.

    Attributes:
        settings: what is measured.
        captured: the model.
        session: has this runtime's workers.
        baselines: torch's processes.
        speed: of an accelerator, in cores.
    """

    settings: Settings
    captured: CapturedModel
    session: ClusterSession
    baselines: BaselineProcesses
    speed: float

    def times(self, case: Case, contender: Contender) -> tuple[float, float]:
        """Return an update's seconds in steady state, and what the busiest worker computes for it.

        Raises:
            RunFailure: if it cannot be run.
        """
        if contender.ours:
            return self._our_times(case, contender.ours)
        assert contender.theirs
        return self._their_times(case, contender.theirs, contender.microbatches)

    def _our_times(self, case: Case, method: Method) -> tuple[float, float]:
        placement = placement_of(self.captured.graph, case.blocks, case.replicas)
        outcome = self.session.measure(placement, self.settings.minibatches, method)
        if isinstance(outcome, FailedMeasurement):
            raise RunFailure(f"{case}, {method}: {outcome.reason}")
        busiest = max(usage.processor_seconds for usage in outcome.workers) / self.speed
        return outcome.seconds_per_minibatch, busiest / outcome.minibatches

    def _their_times(
        self, case: Case, name: BaselineName, microbatches: int
    ) -> tuple[float, float]:
        updates = _WARM_UP_UPDATES + self.settings.minibatches
        results = self.baselines.run(self._run(case, name, microbatches, updates))
        ends = [max(together) for together in zip(*(r.ends for r in results), strict=True)]
        busiest = max(sum(r.processor_seconds[_WARM_UP_UPDATES:]) for r in results) / self.speed
        count = self.settings.minibatches
        return (ends[-1] - ends[_WARM_UP_UPDATES - 1]) / count, busiest / count

    def _run(
        self,
        case: Case,
        name: BaselineName,
        microbatches: int,
        updates: int,
        *,
        check: bool = False,
    ) -> BaselineRun:
        return BaselineRun(
            name=name,
            model=self.captured.reference,
            blocks=case.blocks,
            microbatches=microbatches,
            optimizer=self.settings.optimizer,
            updates=updates,
            with_weights=check,
        )

    # Whether they all compute the same

    @property
    def checked_updates(self) -> int:
        """After how many updates weights are compared.

        The first of n stages makes n forwards before its first update. What asynchronous methods
        keep and predict for stale weights shows only in updates well beyond these.
        """
        return _CHECKED_ROUNDS * self.session.accelerators

    def difference(self, case: Case, contender: Contender) -> float:
        """Return by how much weights after a few updates differ from plain PyTorch's.

        For asynchronous methods, the reference executor's. It is the largest of any weight's
        elements, relative to the largest element of that weight.
        """
        if contender.ours:
            placement = placement_of(self.captured.graph, case.blocks, case.replicas)
            deployment = self.session.deploy(placement, contender.ours, self.settings.optimizer)
            self.session.run(deployment, self.checked_updates)
            found, _ = self.session.collect(deployment)
        else:
            assert contender.theirs
            arguments = (contender.theirs, contender.microbatches, self.checked_updates)
            results = self.baselines.run(self._run(case, *arguments, check=True))
            found = {n: torch.from_numpy(w) for r in results for n, w in r.weights.items()}
        wanted = self._wanted(case, contender)
        assert found.keys() == wanted.keys()
        return max(
            ((found[name] - value).abs().max() / value.abs().max()).item()
            for name, value in wanted.items()
        )

    def _wanted(self, case: Case, contender: Contender) -> dict[str, Tensor]:
        if contender.ours is None or contender.flushes:
            return self._plain
        placement = placement_of(self.captured.graph, case.blocks, case.replicas)
        task = self.captured.task
        assert task.targets is not None
        data = Minibatches(task.inputs, task.targets)
        optimizer = self.settings.optimizer
        result = run_reference(
            self.captured,
            placement,
            data,
            self.checked_updates,
            method=contender.ours,
            optimizer=optimizer,
        )
        return result.state

    @cached_property
    def _plain(self) -> dict[str, Tensor]:
        return plain_weights(self.captured, self.settings.optimizer, self.checked_updates)


def plain_weights(captured: CapturedModel, spec: OptimizerSpec, updates: int) -> dict[str, Tensor]:
    """Return the weights after ``updates`` of the module in an ordinary loop."""
    task = captured.reference.build()
    assert task.loss is not None
    assert task.targets is not None
    optimizer = spec.find()(task.module.parameters(), **spec.complete)
    for _ in range(updates):
        optimizer.zero_grad()
        task.loss(task.module(*task.inputs), task.targets).backward()
        optimizer.step()
    return {name: value.detach() for name, value in task.module.named_parameters()}


def check_cores(speeds: Sequence[float]) -> None:
    """Check that every worker can share a core with others, as emulated ones have to.

    Raises:
        InvalidCluster: saying what would be right.
    """
    cores = available_cores()
    if None in cores_for(speeds, [("localhost", cores)] * len(speeds)):
        most = MOST_LOAD / math.ceil(len(speeds) / len(cores))
        raise InvalidCluster(
            f"{len(speeds)} workers of speed {max(speeds):g} do not fit {len(cores)} cores, each "
            f"of which can give {MOST_LOAD:g} of itself away; use a speed of at most {most:g}"
        )


@contextmanager
def side_by_side(settings: Settings, model: str, accelerators: int) -> Iterator[SideBySide]:
    """Yield a cluster with this many accelerators for one model.

    Raises:
        InvalidCluster: if the accelerators do not fit this machine's cores.
        RunFailure: if they cannot be emulated as the settings want it.
    """
    quotas = [settings.speed] * accelerators
    dilates = settings.emulation == "dilation"
    check_quotas(quotas)
    if dilates:
        check_cores(quotas)
    captured = capture(reference(model, settings.models[model]))
    speeds = quotas if dilates else [1.0] * accelerators
    with ExitStack() as stack:
        session = stack.enter_context(
            ClusterSession(captured, accelerators, optimizer=settings.optimizer, speeds=speeds)
        )
        baselines = stack.enter_context(BaselineProcesses(speeds))
        if not dilates:
            # The workers start with the first placement.
            everyone = Placement.from_assignment([0] * len(captured.graph), [0] * accelerators)
            session.deploy(everyone)
            groups = stack.enter_context(control_groups(quotas))
            groups.hold(session.process_ids)
            groups.hold(baselines.process_ids)
        yield SideBySide(settings, captured, session, baselines, settings.speed)
