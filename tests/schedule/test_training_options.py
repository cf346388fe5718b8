"""Methods as users ask for them; depths of links and recomputation: one value or a list."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.schedule.actions import AllReduce, Recompute
from drlpp.schedule.method import SUGGESTED_LOSS_SCALE, Method
from drlpp.schedule.method_choice import choose_method
from drlpp.schedule.per_stage import stretched
from drlpp.schedule.pipeline import Pipeline, StageEdge
from drlpp.schedule.schedule import build_schedule
from tests.support.schedule_texts import folded
from tests.support.strategies.graphs import pipelines

GPIPE = Method(schedule="gpipe", policy="sync", microbatches=4)
DEEP = Method(in_flight_per_link=2)
STASH = Method(policy="stash", accumulate=2, recompute=True)
HALF = Method(policy="stash", precision="float16", loss_scale=512)


@pytest.mark.parametrize(
    ("base", "policy", "options", "wanted"),
    [
        (None, "stash", {}, Method(policy="stash")),
        (GPIPE, None, {}, GPIPE),
        (GPIPE, "stash", {}, Method(policy="stash")),
        (GPIPE, None, {"schedule": "1f1b"}, Method()),
        (DEEP, "vanilla", {}, Method(policy="vanilla", in_flight_per_link=2)),
        (DEEP, "sync", {}, Method(schedule="gpipe", policy="sync")),
        (STASH, "vanilla", {}, STASH.model_copy(update={"policy": "vanilla"})),
        (None, None, {"schedule": "1f1b-flush"}, Method(schedule="1f1b-flush", policy="sync")),
        (None, "pipemare", {}, Method(policy="pipemare", correction_decay=0.135)),
        (
            None,
            "pipemare",
            {"annealing_minibatches": 9, "correction_decay": 0},
            Method(policy="pipemare", annealing_minibatches=9),
        ),
        (HALF, None, {"precision": "bfloat16"}, Method(policy="stash", precision="bfloat16")),
    ],
)
def test_a_choice_keeps_what_fits(
    base: Method | None, policy: str | None, options: dict[str, object], wanted: Method
) -> None:
    assert choose_method(policy, options, base) == wanted


REFUSALS: list[tuple[str | None, dict[str, object], str]] = [
    ("2bw", {"schedule": "gpipe"}, "no meaning on schedule gpipe; use sync"),
    (None, {"schedule": "1F1B"}, "schedule '1F1B' is unknown"),
    ("nothing", {}, "policy 'nothing' is unknown"),
    ("stash", {"correction_decay": 0.1}, "belong to policy pipemare"),
    ("pipemare", {"correction_decay": 0}, "annealing.*without them it is vanilla"),
    ("stash", {"accumulate": 0}, "field 'accumulate'"),
    ("sync", {"schedule": "1f1b-flush", "in_flight_per_link": 1}, "meaning on it; use 1f1b"),
    ("stash", {"policy": "vanilla"}, "use --policy"),
    ("stash", {"depth": 3}, "no option 'depth'; it has schedule"),
    ("vanilla", {"precision": "bfloat16", "recompute": False}, "leave out recompute=false"),
    ("vanilla", {"precision": "bfloat16", "recompute": [True, False]}, "let every stage do it"),
    ("vanilla", {"recompute": "maybe"}, "Input should be a valid boolean"),
    ("vanilla", {"recompute": [True, "maybe"]}, "field 'recompute"),
    ("stash", {"precision": "float8"}, "field 'precision'"),
    ("stash", {"loss_scale": 512}, "no meaning in float32, .* precision=float16"),
    ("stash", {"precision": "float16", "loss_scale": math.inf}, "loss_scale.*finite"),
    ("vanilla", {"in_flight_per_link": [1, -1]}, "'in_flight_per_link': Input should be greater"),
    ("vanilla", {"in_flight_per_link": [1, True]}, "'in_flight_per_link': expected a number"),
    ("vanilla", {"in_flight_per_link": []}, "'in_flight_per_link"),
]


@pytest.mark.parametrize(("policy", "options", "message"), REFUSALS)
def test_what_does_not_fit_is_told(
    policy: str | None, options: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        choose_method(policy, options)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_reduced_precision_recomputes_where_the_policy_needs_it(precision: str) -> None:
    method = choose_method("pipeoptim", {"precision": precision})
    assert method.recompute
    assert "activations are computed again" in (method.recomputation_text or "")
    assert choose_method(None, {"precision": precision}, Method()).recompute
    assert Method.model_validate_json(method.model_dump_json()) == method
    stashing = choose_method("stash", {"precision": precision}, Method(policy="pipeoptim"))
    assert not stashing.recompute
    assert stashing.recomputation_text is None
    assert choose_method("stash", {"precision": precision, "recompute": True}).recompute
    assert not choose_method("pipeoptim", {"precision": "float32"}).recompute
    # What the precision has asked for goes with it, or with the policy.
    assert not choose_method(None, {"precision": "float32"}, method).recompute
    assert not choose_method("stash", {}, method).recompute
    with pytest.raises(ValidationError, match="Input should be"):
        Method.model_validate({"policy": [], "precision": precision})


def test_only_float16_scales_losses() -> None:
    half = Method(policy="stash", precision="float16")
    assert half.applied_loss_scale == SUGGESTED_LOSS_SCALE
    assert HALF.applied_loss_scale == 512
    assert str(HALF) == "1f1b, stash, float16, losses scaled by 512"
    for method in (Method(), Method(policy="stash", precision="bfloat16", clip_norm=1.0)):
        assert method.applied_loss_scale == 1
        assert not method.skips_updates


@pytest.mark.parametrize(
    ("method", "shares"),
    [
        (Method(schedule="gpipe", policy="sync"), False),
        (Method(schedule="gpipe", policy="sync", clip_norm=1.0), True),
        (Method(schedule="1f1b-flush", policy="sync", precision="float16"), True),
        (HALF, False),
        (HALF.synchronous(Pipeline.straight(1, 1)), True),
    ],
    ids=str,
)
def test_where_a_norm_of_all_stages_is_shared(method: Method, *, shares: bool) -> None:
    schedule = method.schedule_for(Pipeline.straight(1, 1), 3)
    shared = [action for actions in schedule.actions.values() for action in actions]
    norms = [a for a in shared if isinstance(a, AllReduce) and a.content == "squared_norm"]
    assert len(norms) == (6 if shares else 0)


THREE = Pipeline.straight(1, 1, 1)


def plan_of(method: Method, pipeline: Pipeline) -> ExecutionPlan:
    stages = range(len(pipeline.stages))
    return ExecutionPlan(Candidate(Placement.from_assignment(stages, stages), method), pipeline)


@given(pipelines(), st.integers(0, 3), st.booleans())
def test_equal_values_are_one_value(pipeline: Pipeline, per_link: int, recompute: bool) -> None:
    stages = len(pipeline.stages)
    one = Method(in_flight_per_link=per_link, recompute=recompute)
    each = Method(
        in_flight_per_link=(per_link,) * max(stages - 1, 1), recompute=(recompute,) * stages
    )
    assert each == one
    assert hash(each) == hash(one)
    assert each.model_dump_json() == one.model_dump_json()
    # Below the method lists are as they are given.
    assert pipeline.in_flight((per_link,) * (stages - 1)) == pipeline.in_flight(per_link)
    listed = build_schedule(
        pipeline, 6, in_flight_per_link=(per_link,) * (stages - 1), recompute=(recompute,) * stages
    )
    assert listed == build_schedule(pipeline, 6, in_flight_per_link=per_link, recompute=recompute)


def test_a_link_counts_for_all_stages_before_it() -> None:
    """Of a chain; of replicas, each; of branches, the one with the most."""
    assert THREE.in_flight((2, 0)) == (5, 2, 1)
    assert THREE.in_flight((0, 2)) == (5, 4, 1)
    assert Pipeline.straight(1, 1, 2).in_flight((0, 1)) == (6, 5, 1)
    assert Pipeline.straight(2, 1).in_flight(2) == (3, 1)
    edges = tuple(StageEdge(*edge) for edge in ((0, 1), (0, 2), (1, 3), (2, 3)))
    forked = Pipeline(((0,), (1,), (2,), (3,)), edges)
    assert forked.in_flight((0, 1, 0)) == (4, 2, 2, 1)
    assert forked.in_flight((3, 1, 0)) == (6, 2, 2, 1)
    wide = Pipeline(((0,), (1,), (2, 3, 4), (5,)), edges)
    assert wide.in_flight() == (5, 2, 2, 1)


@pytest.mark.parametrize("kind", ["1f1b", "1f1b-flush", "gpipe", "zb-h1", "zb-v"])
def test_the_stages_recompute_that_are_to(kind: str) -> None:
    pipeline = folded(2) if kind == "zb-v" else Pipeline.straight(1, 1, 1, 1)
    parts = {} if kind == "1f1b" else {"microbatches": 4}
    schedule = build_schedule(pipeline, 6, kind, **parts, recompute=(False, True, True, False))
    recomputing = {
        pipeline.stages_of(worker)[action.chunk]
        for worker, actions in schedule.actions.items()
        for action in actions
        if isinstance(action, Recompute)
    }
    assert recomputing == {1, 2}


@pytest.mark.parametrize(
    ("options", "stages", "message"),
    [
        ({"in_flight_per_link": (1, 0)}, 2, "has 2 values, .* has 2 stages: give one value$"),
        ({"in_flight_per_link": (1, 0)}, 4, "has 4 stages: .*, or 3, one for each link"),
        ({"recompute": (True, False)}, 3, "recompute has 2 values, .* or 3, one for each stage"),
    ],
)
def test_a_list_of_another_length_is_refused(
    options: dict[str, object], stages: int, message: str
) -> None:
    method = Method.model_validate(options)
    with pytest.raises(InvalidInput, match=message):
        plan_of(method, Pipeline.straight(*[1] * stages))
    with pytest.raises(InvalidInput, match=message):
        method.schedule_for(Pipeline.straight(*[1] * stages), 3)


def test_a_list_for_another_number_of_stages_is_stretched() -> None:
    method = Method(in_flight_per_link=(2, 0, 1), recompute=(True, False, False, False))
    assert method.for_stages(4) == method
    assert method.for_stages(3) == Method(in_flight_per_link=(2, 0), recompute=(True, False, False))
    assert method.for_stages(1) == Method(in_flight_per_link=2, recompute=True)
    assert method.for_any_stages == Method(in_flight_per_link=2, recompute=True)
    assert stretched((0, 3), 4) == (0, 0, 3, 3)
    assert stretched(3, 4) == 3


def test_methods_that_differ_read_differently() -> None:
    base = Method(policy="pipemare", annealing_minibatches=4, correction_decay=0.3)
    changes: dict[str, object] = {
        "schedule": "gpipe",
        "microbatches": 2,
        "accumulate": 3,
        "in_flight_per_link": 1,
        "recompute": True,
        "precision": "bfloat16",
        "compiled": True,
        "clip_norm": 1.0,
        "annealing_minibatches": 5,
        "correction_decay": 0.5,
        "policy": "stash",
        "loss_scale": 2.0,
    }
    assert changes.keys() == Method.model_fields.keys()
    texts = [str(base.model_copy(update={name: value})) for name, value in changes.items()]
    half = Method(policy="stash", precision="float16", recompute=True)
    texts[-1] = str(half.model_copy(update={"loss_scale": 2.0}))
    assert len({str(base), str(half), *texts}) == len(changes) + 2
