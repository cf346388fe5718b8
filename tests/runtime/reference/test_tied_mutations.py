"""Whoever breaks the rule for parameters that several stages share is noticed.

The rule is that of `docs/methods.md`, "Parameters that several stages share". Each mutation breaks
one sentence of it, in the code of workers, of the reference, or of the schedule that both follow;
and each has to be seen by the comparisons that it names: workers with the reference, schedules that
flush with plain PyTorch, and, since workers and reference share the schedule, asynchronous workers
with the rule written out for four stages.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.errors import InvalidInput
from drlpp.models.model_reference import ModelReference
from drlpp.placement import execution_plan
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement
from drlpp.runtime import Minibatches, RunOptions, run_reference
from drlpp.runtime.reference.replay import Replay
from drlpp.runtime.stage.tied_weights import TiedWeights
from drlpp.runtime.worker import tied_sums
from drlpp.runtime.worker.tied_sums import TiedSums
from drlpp.schedule import schedule as schedule_module
from drlpp.schedule import ties
from drlpp.schedule.analysis import update_rates, weight_versions
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline
from drlpp.schedule.ties import Tie
from drlpp.schedule.weight_policies import PartCounts
from drlpp.specs.optimizer_spec import OptimizerSpec
from tests.support.models.forked import largest_difference
from tests.support.models.tied import order, samples
from tests.support.models.tied_chain import by_the_rule, in_four_stages
from tests.support.training.in_one_process import train_in_one_process
from tests.support.training.pipelines import train

MINIBATCHES, RATE, MOMENTUM = 10, 0.1, 0.9
SGD = OptimizerSpec(name="sgd", options={"lr": RATE, "momentum": MOMENTUM})
REFERENCE = ModelReference.named("tests.support.models.tied_chain:tied_chain")
ROUNDING, NOTICED = 1e-9, 1e-4

STASH, PIPEOPTIM = Method(policy="stash"), Method(policy="pipeoptim")
CLIPPED = Method(schedule="1f1b-flush", policy="sync", microbatches=2, clip_norm=0.05)


@pytest.fixture(scope="module")
def captured() -> Iterator[CapturedModel]:
    # As in a worker: the others of a machine compute as well.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield capture(REFERENCE)
    torch.set_num_threads(before)


def _straight(captured: CapturedModel) -> Placement:
    return in_four_stages(captured.graph)


def _replicated(captured: CapturedModel) -> Placement:
    """Two replicas of the first two of the four stages together, and one of the others."""
    stages = _straight(captured).stage_of_operator(len(captured.graph))
    return Placement.from_assignment([int(stage > 1) for stage in stages], (0, 0, 1))


def _of_workers(
    captured: CapturedModel, method: Method, shape: Callable[..., Placement]
) -> dict[str, Tensor]:
    return train_in_one_process(
        captured,
        Candidate(shape(captured), method),
        SGD,
        MINIBATCHES,
        Minibatches(*samples()),
        RunOptions(order=order(MINIBATCHES)),
    )


def _from_reference(
    method: Method, shape: Callable[..., Placement] = _straight
) -> Callable[[CapturedModel], float]:
    """Return the comparison of workers with the reference executor."""

    def difference(captured: CapturedModel) -> float:
        reference = run_reference(
            captured,
            shape(captured),
            Minibatches(*samples()),
            MINIBATCHES,
            method=method,
            optimizer=SGD,
            options=RunOptions(order=order(MINIBATCHES)),
        )
        return largest_difference(_of_workers(captured, method, shape), reference.state)

    return difference


def _minibatches() -> list[tuple[Tensor, Tensor]]:
    (tokens,), targets = samples()
    return [(tokens[indices], targets[indices]) for indices in order(MINIBATCHES)]


def _from_plain_pytorch(captured: CapturedModel) -> float:
    module = REFERENCE.build().module
    optimizer = torch.optim.SGD(module.parameters(), lr=RATE, momentum=MOMENTUM)
    minibatches = [((tokens,), targets) for tokens, targets in _minibatches()]
    train(module, F.cross_entropy, optimizer, minibatches, clip_norm=CLIPPED.clip_norm)
    return largest_difference(_of_workers(captured, CLIPPED, _straight), module.state_dict())


def _from_the_rule(method: Method) -> Callable[[CapturedModel], float]:
    def difference(captured: CapturedModel) -> float:
        wanted = by_the_rule(
            _minibatches(), rate=RATE, momentum=MOMENTUM, predicts=method == PIPEOPTIM
        )
        found = _of_workers(captured, method, _straight)
        return largest_difference({name: found[name] for name in wanted}, wanted)

    return difference


COMPARISONS: dict[str, Callable[[CapturedModel], float]] = {
    "flushed with PyTorch": _from_plain_pytorch,
    "flushed with reference": _from_reference(CLIPPED),
    "stashing with rule": _from_the_rule(STASH),
    "stashing with reference": _from_reference(STASH),
    "pipeoptim with rule": _from_the_rule(PIPEOPTIM),
    "replicated with reference": _from_reference(STASH, _replicated),
    "clipped with reference": _from_reference(Method(policy="stash", clip_norm=0.05)),
    "T1 with reference": _from_reference(Method(policy="pipemare", annealing_minibatches=9)),
    "T2 with reference": _from_reference(Method(policy="pipemare", correction_decay=0.2)),
}
SUMS = ("flushed with PyTorch", "flushed with reference", "stashing with rule")


def _a_stage_is_left_out(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tied_sums, "_added", lambda total, more: list(total))


def _a_stage_counts_twice(patch: pytest.MonkeyPatch) -> None:
    added = tied_sums._added
    patch.setattr(tied_sums, "_added", lambda total, more: added(added(total, more), more))


def _the_mean_over_stages(patch: pytest.MonkeyPatch) -> None:
    update_by = TiedWeights.update_by

    def divided(
        copy: TiedWeights, total: list[Tensor], contributions: int, norm: float | None
    ) -> bool:
        *gradients, reached = total
        stages = 1 + len(copy.plan.others)
        return update_by(copy, [*(g / stages for g in gradients), reached], contributions, norm)

    patch.setattr(TiedWeights, "update_by", divided)


def _copies_go_their_own_ways(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TiedSums, "_total", lambda sums, stage, tie, last: sums._contribution(stage, tie))


def _replicas_are_left_out(patch: pytest.MonkeyPatch) -> None:
    def alone(sums: TiedSums, tie: int) -> None:
        (stage,) = sums._runners
        sums._contribution(stage, tie)

    patch.setattr(TiedSums, "sum_over_replicas", alone)


def _clipping_counts(times: int) -> Callable[[pytest.MonkeyPatch], None]:
    squared_norm = TiedSums.squared_norm

    def mutate(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(TiedSums, "squared_norm", lambda sums, last: times * squared_norm(sums, last))

    return mutate


def _copies_are_not_clipped(patch: pytest.MonkeyPatch) -> None:
    update_by = TiedWeights.update_by
    patch.setattr(
        TiedWeights,
        "update_by",
        lambda copy, total, contributions, norm: update_by(copy, total, contributions, 0.0),
    )


def _copies_are_updated(updates: int) -> Callable[[pytest.MonkeyPatch], None]:
    """So many updates early, or late."""
    met_at_root = ties._met_at_root

    def shifted(*given: Any) -> dict[Any, int]:
        met = met_at_root(*given)
        return {part: max(0, version + updates if version else 0) for part, version in met.items()}

    return lambda patch: patch.setattr(ties, "_met_at_root", shifted)


def _copies_look_ahead_without(*counts: str) -> Callable[[pytest.MonkeyPatch], None]:
    def without(**given: int) -> PartCounts:
        return PartCounts(**(given | dict.fromkeys(counts, 0)))

    return lambda patch: patch.setattr(weight_versions, "PartCounts", without)


def _as_late_as_the_last_stage(module: Any) -> Callable[[pytest.MonkeyPatch], None]:
    def of_last(pipeline: Pipeline, tie: Tie, method: Method) -> int:
        return weight_versions.steady_delay(pipeline, tie.stages[-1], method)

    return lambda patch: patch.setattr(module, "tied_delay", of_last)


def _reference_leaves_out_a_stage(patch: pytest.MonkeyPatch) -> None:
    gradient = Replay._tied_gradient
    patch.setattr(
        Replay,
        "_tied_gradient",
        lambda replay, tie, version: gradient(
            replay, replace(tie, stages=tie.stages[:-1]), version
        ),
    )


def _reference_takes_the_mean(patch: pytest.MonkeyPatch) -> None:
    gradient = Replay._tied_gradient

    def mean(replay: Replay, tie: Tie, version: int) -> dict[str, Tensor]:
        found = gradient(replay, tie, version)
        return {name: value / len(tie.stages) for name, value in found.items()}

    patch.setattr(Replay, "_tied_gradient", mean)


WITH_REFERENCE = ("flushed with reference", "stashing with reference")
MUTATIONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "a stage is left out": (_a_stage_is_left_out, SUMS),
    "a stage counts twice": (_a_stage_counts_twice, SUMS),
    "the mean over stages": (_the_mean_over_stages, SUMS),
    "copies go their own ways": (_copies_go_their_own_ways, SUMS),
    "replicas are left out": (_replicas_are_left_out, ("replicated with reference",)),
    "clipping counts it twice": (_clipping_counts(2), SUMS[:2]),
    "clipping leaves it out": (_clipping_counts(0), SUMS[:2]),
    "copies are not clipped": (_copies_are_not_clipped, ("clipped with reference",)),
    "an update too early": (_copies_are_updated(1), ("stashing with rule", "pipeoptim with rule")),
    "an update too late": (_copies_are_updated(-1), ("stashing with rule", "pipeoptim with rule")),
    "looking ahead without lateness": (
        _copies_look_ahead_without("still_to_come"),
        ("pipeoptim with rule",),
    ),
    "T1 by the last stage": (_as_late_as_the_last_stage(update_rates), ("T1 with reference",)),
    "T2 by the last stage": (_as_late_as_the_last_stage(execution_plan), ("T2 with reference",)),
    "reference leaves out a stage": (_reference_leaves_out_a_stage, WITH_REFERENCE),
    "reference takes the mean": (_reference_takes_the_mean, WITH_REFERENCE),
}


@pytest.mark.parametrize("comparison", COMPARISONS)
def test_the_rule_is_kept(captured: CapturedModel, comparison: str) -> None:
    assert COMPARISONS[comparison](captured) < ROUNDING


@pytest.mark.parametrize(
    ("mutation", "comparison"),
    [(name, by) for name, (_, noticing) in MUTATIONS.items() for by in noticing],
)
def test_a_mutation_is_noticed(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch, mutation: str, comparison: str
) -> None:
    mutate, _ = MUTATIONS[mutation]
    mutate(monkeypatch)
    assert COMPARISONS[comparison](captured) > NOTICED


def test_a_root_that_is_not_the_latest_is_refused(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the last stage gradients of the others are not there in time."""

    ties_of = ties.ties_of

    def by_the_last(*given: Any) -> tuple[Tie, ...]:
        return tuple(replace(tie, root=tie.stages[-1]) for tie in ties_of(*given))

    for module in (ties, schedule_module):
        monkeypatch.setattr(module, "ties_of", by_the_last)
    with pytest.raises(InvalidInput, match="share a parameter"):
        _of_workers(captured, STASH, _straight)
