"""What planners count for a method's memory is what its workers hold: weights, and parts in flight.

Counted by storage while workers train in one process: the newest weights, every copy of them that a
policy keeps, gradients, and the optimizer's state.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from drlpp.costs.memory import MemoryModel
from drlpp.costs.workload import Workload
from drlpp.runtime.stage.stage_runner import StageRunner
from drlpp.runtime.stage.stage_weights import StageWeights
from drlpp.runtime.weights.policies import WeightPolicy
from drlpp.schedule.method import Method
from drlpp.simulator import Simulation, simulate
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.chain import WIDTH
from tests.support.mutations.chained import ADAMW, SUBJECT, of_chain
from tests.support.mutations.trained import SGD, Trained
from tests.support.simulated_chains import chain, fast_cluster

COUNTS = 0.06
"""Copies that the numbers behind the gradients of a bucket take, of weights as small as these."""


class Watch:
    """The most that stages hold while they train: copies as large as their weights, and parts."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._runners: list[StageRunner] = []
        self.copies: dict[int, float] = defaultdict(float)
        self.parts: dict[int, int] = defaultdict(int)
        self.half_done: dict[int, int] = defaultdict(int)
        begin, done_with = StageRunner.begin, StageWeights.done_with

        def begun(runner: StageRunner, *given: Any) -> None:
            self._runners.append(runner)
            begin(runner, *given)

        def about_to_give_up(weights: StageWeights, *given: Any) -> None:
            self._look()
            done_with(weights, *given)

        patch.setattr(StageRunner, "begin", begun)
        patch.setattr(StageWeights, "done_with", about_to_give_up)
        for owner, name in (
            (StageRunner, "forward"),
            (StageRunner, "backward_input"),
            (WeightPolicy, "update"),
        ):
            patch.setattr(owner, name, self._then_look(getattr(owner, name)))

    def _then_look(self, done: Callable[..., Any]) -> Callable[..., Any]:
        def looked(*given: Any) -> Any:
            result = done(*given)
            self._look()
            return result

        return looked

    def _look(self) -> None:
        for runner in self._runners:
            stage, in_flight = runner.program.stage, runner._in_flight.values()
            half_done = sum(passed.half_done is not None for passed in in_flight)
            storages = [tensor.untyped_storage() for tensor in _held(runner)]
            held = sum({s.data_ptr(): s.nbytes() for s in storages}.values())
            self.copies[stage] = max(
                self.copies[stage], held / sum(w.nbytes for w in runner.weights.newest)
            )
            self.parts[stage] = max(self.parts[stage], len(in_flight))
            self.half_done[stage] = max(self.half_done[stage], half_done)


def _held(runner: StageRunner) -> Iterator[Tensor]:
    weights = runner.weights
    yield from weights.newest
    yield from (weight.grad for weight in weights.newest if weight.grad is not None)
    for gradients in weights.gradients.values():
        yield from (value for value in gradients.sums() if value is not None)
    for policy in weights.policies:
        yield from policy.copies()
        for state in [*policy.optimizer.state.values(), *policy.state()]:
            # A counter is no copy.
            yield from (t for t in state.values() if torch.is_tensor(t) and t.numel() > 1)


def _simulated(trained: Trained) -> Simulation:
    stages = trained.placed.stages
    holders = [worker for stage in stages for worker in stage.accelerators]
    placement = trained.placed.model_copy(
        update={
            "stages": tuple(
                stage.model_copy(update={"operators": (k,)}) for k, stage in enumerate(stages)
            )
        }
    )
    workload = Workload.of(chain(*[3.0] * len(stages)))
    cluster = fast_cluster(1 + max(holders))
    return simulate(workload, cluster, placement, trained.method, SUBJECT.minibatches)


NEWER = {
    "PipeOptim": of_chain(Method()),
    "PipeOptim, M = D": of_chain(Method(microbatches=4)),
    "stashing, replicated": of_chain(Method(policy="stash", microbatches=2), SGD, "replicated"),
    "2BW": of_chain(Method(policy="2bw", microbatches=4)),
    "last step": of_chain(Method(policy="last-step"), ADAMW),
    "ZB-H1": of_chain(Method(schedule="zb-h1", policy="sync", microbatches=4)),
    "ZB-V": of_chain(Method(schedule="zb-v", policy="sync", microbatches=8), SGD, "folded"),
}
MUON = OptimizerSpec.parse("muon")
NEWER["Muon"] = of_chain(Method(policy="stash", microbatches=2), MUON)
NEWER["Muon, predicted"] = of_chain(Method(microbatches=2), MUON)

MATRICES = WIDTH / (WIDTH + 1)
"""Their share of a layer's weights; the others are its bias."""
TOO_MUCH = {
    # A moment of matrices that AdamW would have.
    "Muon": MATRICES,
    "Muon, predicted": MATRICES,
}
"""Copies that the first stage does not hold, for which an optimizer's largest state is counted."""


@pytest.mark.parametrize("name", NEWER)
def test_what_workers_hold_is_what_planners_count(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    trained = NEWER[name]
    simulated = _simulated(trained)
    in_flight = simulated.program.in_flight
    watch = Watch(monkeypatch)
    trained.on_workers()
    model = MemoryModel.of(trained.method, trained.optimizer)
    replicas = [len(workers) for workers in simulated.pipeline.stages]
    counted = [
        model.weight_copies
        + trained.method.policy_facts.stashes * model.older_versions(parts, of_stage)
        for parts, of_stage in zip(
            trained.method.in_flight(simulated.pipeline), replicas, strict=True
        )
    ]
    too_much = TOO_MUCH.get(name, 0.0)
    assert watch.copies[0] == pytest.approx(counted[0] - too_much, abs=COUNTS)
    # Stages without staleness keep nothing to predict with.
    assert all(watch.copies[k] <= counted[k] + COUNTS for k in watch.copies)
    held = [k for stages in simulated.program.stages_of for k in stages]
    assert dict(watch.parts) == dict(zip(held, in_flight, strict=True))
    assert dict(watch.half_done) == dict(zip(held, simulated.program.half_done, strict=True))
