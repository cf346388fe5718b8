"""Placements that can be run, and the plan of one, which is built once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.capturing.graph import Edge, OpGraph, SharedParameter
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.io.documents import write_document
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement, Stage
from drlpp.placement.placement_file import PlacementFile, read_placement
from drlpp.schedule.actions import Computation
from drlpp.schedule.kinds.alternating import alternate
from drlpp.schedule.kinds.kind import ScheduleKind, Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline, StageEdge
from tests.support.strategies.graphs import graph_of, graphs, placements

DIAMOND = graph_of(
    [(0, 1), (0, 2), (1, 3), (2, 3)], parameter_bytes=[1, 2, 3, 4], output_bytes=[10, 20, 30, 40]
)


def place(*stages: tuple[list[int], list[int]]) -> Placement:
    return Placement(
        stages=tuple(Stage(operators=tuple(o), accelerators=tuple(a)) for o, a in stages)
    )


def changed(**change: Any) -> OpGraph:
    fields: dict[str, Any] = {name: getattr(DIAMOND, name) for name in OpGraph.model_fields}
    return OpGraph(**{**fields, **change})


@pytest.mark.parametrize(
    ("placement", "problem"),
    [
        (place(), "has no stages"),
        (place(([0, 1, 2, 3], [])), "stage 0 has no accelerator"),
        (place(([0, 1, 2, 3], [4])), r"stage 0 names accelerator 4, but there are only 0 to 3"),
        (place(([0, 1], [0]), ([2, 3], [0])), "accelerator 0 is used twice, by stage 0 and"),
        (place(([0, 1, 2, 3], [0]), ([], [1])), "stage 1 has no operators"),
        (place(([0, 1, 2, 4], [0])), "names operator 4, but the graph of made-up has only 0 to 3"),
        (place(([0, 1], [0]), ([1, 2, 3], [1])), r"operator 1 \(op1\) is in stage 0 and in stage"),
        (place(([0, 1], [0])), r"operator 2 \(op2\) is in no stage, nor are 1 others"),
        (place(([0, 3], [0]), ([1, 2], [1])), r"operator 3 \(op3\) in stage 0 reads operator 1"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(placement: Placement, problem: str) -> None:
    with pytest.raises(InvalidPlacement, match=problem) as caught:
        placement.validate_for(DIAMOND, accelerators=4)
    assert "\n" not in str(caught.value)


def test_every_accelerator_may_hold_two_stages_there_and_back() -> None:
    folded = place(([0], [1]), ([1], [0]), ([2], [0]), ([3], [1]))
    folded.validate_for(DIAMOND, accelerators=2)
    assert folded.is_folded
    assert folded.accelerators == (0, 1)
    assert folded.pipeline(DIAMOND).stages_by_worker == {1: (0, 3), 0: (1, 2)}
    for other in (
        place(([0], [0]), ([1], [1]), ([2], [0]), ([3], [1])),
        place(([0], [0]), ([1], [1]), ([2], [2]), ([3], [0])),
        place(([0], [0, 1]), ([1], [2]), ([2], [2]), ([3], [0, 1])),
    ):
        with pytest.raises(InvalidPlacement, match="is used twice"):
            other.validate_for(DIAMOND, accelerators=4)


def test_pipeline_has_an_edge_for_every_pair_of_stages_that_exchange_tensors() -> None:
    placement = place(([0], [1, 2]), ([1], [3]), ([2], [0]), ([3], [4]))
    placement.validate_for(DIAMOND, accelerators=5)
    assert placement.configuration == "2-1-1-1"
    assert placement.accelerators == (0, 1, 2, 3, 4)
    assert placement.pipeline(DIAMOND) == Pipeline(
        stages=((1, 2), (3,), (0,), (4,)),
        edges=(StageEdge(0, 1), StageEdge(0, 2), StageEdge(1, 3), StageEdge(2, 3)),
    )


def test_outputs_of_the_model_go_to_the_last_stage() -> None:
    graph = DIAMOND.model_copy(update={"outputs": ((1, 0), (3, 0))})
    pipeline = place(([0, 1], [0]), ([2], [1]), ([3], [2])).pipeline(graph)
    assert StageEdge(0, 2) in pipeline.edges
    two_heads = graph_of([(0, 1), (0, 2)], parameter_bytes=[0] * 3, output_bytes=[1] * 3)
    pipeline = place(([0], [0]), ([1], [1]), ([2], [2])).pipeline(two_heads)
    assert StageEdge(1, 2) in pipeline.edges


@given(st.data())
def test_valid_placements_are_accepted_and_give_pipelines_that_only_lead_forward(
    data: st.DataObject,
) -> None:
    graph = data.draw(graphs())
    placement = data.draw(placements(graph, accelerators=4))
    placement.validate_for(graph, accelerators=4)
    pipeline = placement.pipeline(graph)
    assert pipeline.workers == placement.accelerators
    assert all(edge.source < edge.target for edge in pipeline.edges)
    # No stage is left aside: every one but the last sends something on.
    assert {edge.source for edge in pipeline.edges} == set(range(len(pipeline.stages) - 1))


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.data())
def test_every_cut_of_even_runs_is_as_near_to_its_share_as_can_be(
    sizes: list[int], data: st.DataObject
) -> None:
    count = data.draw(st.integers(1, len(sizes)))
    stages = Placement.straight(sizes, range(7, 7 + count)).stages
    assert [op for stage in stages for op in stage.operators] == list(range(len(sizes)))
    assert [stage.accelerators for stage in stages] == [(7 + n,) for n in range(count)]
    end = 0
    for number, stage in enumerate(stages[:-1], 1):
        possible = range(end + 1, len(sizes) - count + number + 1)
        off = {cut: abs(sum(sizes[:cut]) - sum(sizes) * number / count) for cut in possible}
        end += len(stage.operators)
        assert off[end] == min(off.values())


def test_the_fingerprint_follows_the_model_and_not_the_batch_size() -> None:
    def with_first(**change: Any) -> OpGraph:
        first = DIAMOND.operators[0].model_copy(update=change)
        operators = (first, *DIAMOND.operators[1:])
        return changed(operators=operators)

    larger_batch = DIAMOND.operators[1].outputs
    assert with_first(outputs=larger_batch).fingerprint == DIAMOND.fingerprint
    assert with_first(parameter_bytes=2).fingerprint != DIAMOND.fingerprint
    assert with_first(type="conv2d").fingerprint != DIAMOND.fingerprint
    assert changed(edges=DIAMOND.edges[:3]).fingerprint != DIAMOND.fingerprint


@pytest.mark.parametrize(
    "change",
    [
        {"operators": ()},
        {"operators": DIAMOND.operators[::-1]},
        {"edges": (Edge(source=2, target=1, outputs=(0,)),)},
        {"edges": (Edge(source=0, target=1, outputs=(1,)),)},
        {"outputs": ((3, 1),)},
        {"outputs": ((4, 0),)},
    ],
)
def test_graphs_that_contradict_themselves(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="do not fit together"):
        changed(**change)


GRAPH = graph_of([(0, 1), (1, 2), (2, 3)], parameter_bytes=[1] * 4, output_bytes=[1] * 4)
OTHER = graph_of([(0, 1), (1, 2)], parameter_bytes=[1] * 3, output_bytes=[1] * 3)
HALVES = Placement.from_assignment([0, 0, 1, 1], [0, 1, 1])
METHOD = Method()
FLUSHING = Method(schedule="gpipe", policy="sync", microbatches=2)

BEFORE_CANDIDATES = {
    "kind": "placement",
    "version": 1,
    "model": {
        "name": "alexnet",
        "options": {"batch_size": 32, "input_size": 64, "classes": 10, "width": 0.5},
    },
    "graph_fingerprint": "0b386d6f78e7c637",
    "configuration": "1-2",
    "stages": [
        {"operators": ["op0", "op1"], "accelerators": [0]},
        {"operators": ["op2", "op3"], "accelerators": [1, 2]},
    ],
    "method": {"schedule": "1f1b", "policy": "stash", "microbatches": 1, "accumulate": 2}
    | {"in_flight_per_link": 0, "recompute": False, "precision": "float32", "clip_norm": 0.0}
    | {"annealing_minibatches": 0, "correction_decay": 0.0},
    "optimizer": {"name": "adam", "options": {"lr": 0.01}},
    "found_by": "exact",
    "cluster": {
        "hosts": [
            {"name": "localhost", "count": 1, "accelerators": 3, "device": "cpu", "speed": 1.0}
        ],
        "within_host": {"bandwidth_bytes_per_second": 1000000000.0, "latency_seconds": 0.0},
    },
    "versions": {"drlpp": "0.1.0", "torch": "2.13.0+cpu", "python": "3.11.7"},
}
"""A placement file as it was written before there were candidates."""


def test_a_placement_file_is_a_candidate_and_back(tmp_path: Path) -> None:
    path = tmp_path / "placement.json"
    path.write_text(json.dumps(BEFORE_CANDIDATES))
    document = read_placement(path)
    stash = Method(policy="stash", accumulate=2)
    plan = document.plan(GRAPH)
    assert plan == ExecutionPlan.of(Candidate(HALVES, stash), GRAPH, 3)
    assert document.plan(GRAPH, FLUSHING).candidate == Candidate(HALVES, FLUSHING)
    created = PlacementFile.create(
        document.model,
        GRAPH,
        HALVES,
        document.cluster,
        method=stash,
        optimizer=document.optimizer,
        found_by="exact",
    ).model_copy(update={"versions": document.versions})
    assert created == document
    write_document(path, created)
    written = json.loads(path.read_text())
    assert written["method"].pop("compiled") is False, "stages were not compiled then"
    assert written == BEFORE_CANDIDATES


def test_there_is_no_plan_of_what_cannot_be_run() -> None:
    with pytest.raises(InvalidPlacement, match="there are only 0 to 1"):
        ExecutionPlan.of(Candidate(HALVES, METHOD), GRAPH, 2)
    with pytest.raises(InvalidPlacement, match="only 0 to 2"):
        ExecutionPlan.of(Candidate(HALVES, METHOD), OTHER, 3)
    asynchronous = Method(schedule="1f1b", policy="sync")
    with pytest.raises(InvalidInput, match="policy sync cannot run a 1-2 placement"):
        ExecutionPlan.of(Candidate(HALVES, asynchronous), GRAPH, 3)


def _ahead(share: Share) -> Iterator[Computation]:
    steps = alternate(share.parts(), share.in_flight + 2 * share.stage)
    for parts, update in share.updates():
        for _ in parts:
            yield from next(steps)
        yield update


TIED = GRAPH.model_copy(
    update={"shared_parameters": (SharedParameter(name="words", bytes_=1, operators=(0, 3)),)}
)


def test_a_schedule_that_cannot_keep_copies_the_same_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its last stage has more minibatches in flight than it says."""
    kind = ScheduleKind(name="ahead", order=_ahead, flushes=False)
    monkeypatch.setitem(SCHEDULE_KINDS, kind.name, kind)
    method = Method(schedule="ahead", policy="stash")
    ExecutionPlan.of(Candidate(HALVES, method), GRAPH, 3)
    with pytest.raises(InvalidInput, match=r"stages 0 and 1 share a parameter.* one stage"):
        ExecutionPlan.of(Candidate(HALVES, method), TIED, 3)
    together = Placement.from_assignment([0, 0, 0, 0], [0, 0, 0])
    assert not ExecutionPlan.of(Candidate(together, method), TIED, 3).ties


def test_a_plan_knows_who_shares_what_and_how_late_it_is() -> None:
    (tie,) = ExecutionPlan.of(Candidate(HALVES, METHOD), TIED, 3).ties
    assert (tie.stages, tie.root, tie.together) == ((0, 1), 0, 2)
    assert HALVES.ties(TIED) == {(0, 1): TIED.shared_parameters}
    chain = Placement.from_assignment([0, 1, 2, 2], [0, 1, 2])
    plan = ExecutionPlan.of(Candidate(chain, METHOD), TIED, 3)
    assert (plan.delays, plan.tied_delays) == ((2, 1, 0), (2,))
    assert plan.synchronous.tied_delays == (0,)
    frozen = TIED.shared_parameters[0].model_copy(update={"trained": False})
    assert not HALVES.ties(TIED.model_copy(update={"shared_parameters": (frozen,)}))


def test_whatever_a_caller_has_is_taken_for_its_plan() -> None:
    plan = ExecutionPlan.taken(HALVES, GRAPH, 3, METHOD)
    assert plan == ExecutionPlan.taken(Candidate(HALVES, METHOD), GRAPH, 3, FLUSHING)
    assert ExecutionPlan.taken(plan, GRAPH, 3, FLUSHING) is plan
    with pytest.raises(InvalidInput, match="on 3 accelerators, but this is made-up on 4"):
        ExecutionPlan.taken(plan, GRAPH, 4, METHOD)
    with pytest.raises(InvalidInput, match="the plan is of made-up"):
        ExecutionPlan.taken(plan, OTHER, 3, METHOD)
    with pytest.raises(InvalidInput, match="no graph"):
        ExecutionPlan.taken(ExecutionPlan(plan.candidate, plan.pipeline), GRAPH, 3, METHOD)
