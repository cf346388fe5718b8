"""A plan is built once, and there is none of what cannot be run."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from drlpp.capturing.graph import SharedParameter
from drlpp.errors import InvalidInput, InvalidPlacement
from drlpp.io.documents import write_document
from drlpp.placement.candidate import Candidate
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.placement import Placement
from drlpp.placement.placement_file import PlacementFile, read_placement
from drlpp.schedule.actions import Computation
from drlpp.schedule.kinds.alternating import alternate
from drlpp.schedule.kinds.kind import ScheduleKind, Share
from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.method import Method
from tests.support.strategies.graphs import graph_of

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
    swapped = document.model_copy(update={"configuration": "2-1"})
    with pytest.raises(InvalidPlacement, match="field 'configuration' is 2-1"):
        swapped.plan(GRAPH)


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
