"""The exact planner against exhaustive search and the published optima."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import networkx
import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drlpp.costs.stage_cost import Group, StageSeconds, StageWork
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput, NothingFits
from drlpp.planners.downsets import StagePairs, all_downsets
from drlpp.planners.exact.exact import exact
from drlpp.planners.problem import PlanningProblem
from drlpp.specs.cluster import Cluster, Link, local_cluster
from tests.support.planning.brute_force import check_against_optimum, every_placement, optimum
from tests.support.strategies.graphs import cluster_of
from tests.support.strategies.problems import check_placement, problems, workloads

INSTANCES = Path(__file__).parents[1] / "data" / "dnn-partitioning"
CONTIGUOUS_OPTIMA = {
    "bert24_training": 41.7458,
    "bert24_inference": 17.7899,
    "resnet50_training": 80.4549,
    "resnet50_inference": 34.2229,
    "bert_l-3_training": 65.3031,
    "bert_l-3_inference": 27.9186,
}
"""Milliseconds, by the name of the instance; without replication, on as many devices as it has."""
_LINK = Link(bandwidth_bytes_per_second=1.0)


def read_instance(path: Path) -> PlanningProblem:
    """Read an instance of dnn-partitioning (Tarnawski et al. 2020) with its rule, :func:`serial`.

    Nodes of one colour class stay together and are one operator; there is a device for each stage.
    A node's output is one tensor, which takes ``cost`` milliseconds on every device that it leaves
    or enters: it has as many bytes as seconds, and the link carries a byte in a second. Stages are
    ordered by edges between forward nodes, and a class without any by its own backward edges.
    """
    content = json.loads(path.read_text())
    nodes, edges = content["nodes"], content["edges"]
    operator_of, order = _operators(nodes, edges)
    count = max(operator_of.values()) + 1
    forward, backward, size = (numpy.zeros(count) for _ in range(3))
    for node in nodes:
        operator = operator_of[node["id"]]
        (backward if node["isBackwardNode"] else forward)[operator] += node["fpgaLatency"] / 1000
        size[operator] += node.get("size", 0.0)
    costs = {edge["sourceId"]: edge["cost"] for edge in edges}
    readers: dict[int, set[int]] = {}
    for edge in edges:
        readers.setdefault(edge["sourceId"], set()).add(operator_of[edge["destId"]])
    workload = Workload(
        model=path.stem,
        names=tuple(f"operator {operator}" for operator in range(count)),
        forward_seconds=forward,
        backward_seconds=backward,
        update_seconds=numpy.zeros(count),
        parameter_bytes=size,
        kept_bytes=numpy.zeros(count),
        edges=tuple(order),
        transfers=tuple(
            Transfer((operator_of[node], *others), costs[node] / 1000, 0.0)
            for node, found in sorted(readers.items())
            if (others := sorted(found - {operator_of[node]}))
        ),
    )
    return PlanningProblem(workload, local_cluster(content["maxFPGAs"], _LINK), replicate=False)


def serial(work: StageWork, group: Group) -> StageSeconds:
    """Let nothing overlap, neither passes with messages nor both directions of these."""
    messages = (work.incoming_bytes + work.outgoing_bytes) / group.bandwidth
    nothing = numpy.zeros_like(messages)
    return StageSeconds(
        StageSeconds.busy(work, 1) / group.speed + messages, nothing, nothing, nothing
    )


def _operators(
    nodes: list[dict[str, Any]], edges: list[dict[str, Any]]
) -> tuple[dict[int, int], list[tuple[int, int]]]:
    """Return the operator of every node, and the edges between operators."""
    colours: dict[object, int] = {}
    class_of = {
        # A node without a colour is a class of its own.
        node["id"]: colours.setdefault(
            node["colorClass"] if "colorClass" in node else ("node", node["id"]), len(colours)
        )
        for node in nodes
    }
    order: networkx.DiGraph[int] = networkx.DiGraph()
    order.add_nodes_from(range(len(colours)))
    order.add_edges_from(_order_edges(nodes, edges, class_of))
    # Classes on a cycle of the order are one operator.
    fused = networkx.condensation(order)
    first = {component: min(fused.nodes[component]["members"]) for component in fused}
    sorted_ = networkx.lexicographical_topological_sort(fused, key=first.__getitem__)
    numbering = {component: number for number, component in enumerate(sorted_)}
    component_of = fused.graph["mapping"]
    found = sorted({(numbering[source], numbering[target]) for source, target in fused.edges})
    return {node: numbering[component_of[c]] for node, c in class_of.items()}, found


def _order_edges(
    nodes: list[dict[str, Any]], edges: list[dict[str, Any]], class_of: dict[int, int]
) -> Iterator[tuple[int, int]]:
    backward = {node["id"]: node["isBackwardNode"] for node in nodes}
    with_forward = {class_of[node] for node, is_backward in backward.items() if not is_backward}
    for edge in edges:
        source, target = class_of[edge["sourceId"]], class_of[edge["destId"]]
        if source == target:
            continue
        if not backward[edge["destId"]]:
            yield source, target
        elif backward[edge["sourceId"]] and not {source, target} <= with_forward:
            yield target, source


def alike(problem: PlanningProblem) -> PlanningProblem:
    """The problem with accelerators of one speed, and without limits of memory."""
    cluster = problem.cluster.with_hosts(
        host.model_copy(update={"memory_bytes": None, "speed": 1.0})
        for host in problem.cluster.hosts
    )
    return replace(problem, cluster=cluster)


def limited(problem: PlanningProblem, data: st.DataObject) -> PlanningProblem:
    """The problem with hosts that have what some placement needs, or a little less."""
    accelerators = problem.cluster.accelerators
    needs = {
        max(stage.memory_bytes for stage in problem.predict(placement).stages)
        for placement in every_placement(problem.workload, accelerators, problem.replicate)
    }
    limits = st.sampled_from([max(1.0, min(needs) - 1), *sorted(needs)[:9]])
    hosts = (
        host.model_copy(update={"memory_bytes": max(1.0, data.draw(limits))})
        for host in problem.cluster.hosts
    )
    return replace(problem, cluster=problem.cluster.with_hosts(hosts))


@given(problem=problems(max_operators=5, max_accelerators=3, hosts=1, divided=True))
@settings(max_examples=30)
def test_it_is_the_optimum_of_all_placements(problem: PlanningProblem) -> None:
    problem = alike(problem)
    solution = exact(problem)
    assert solution == exact(problem)
    check_placement(problem, solution.placement)
    check_against_optimum(problem, solution)


@given(problem=problems(max_operators=5, hosts=1), data=st.data())
@settings(max_examples=25)
def test_memory_limits_are_kept_on_chains(problem: PlanningProblem, data: st.DataObject) -> None:
    links = [(i, i + 1) for i in range(len(problem.workload) - 1)]
    transfers = tuple(Transfer(link, 1.0 + link[0], 1.0) for link in links)
    chain = replace(problem.workload, edges=tuple(links), transfers=transfers, ties=())
    problem = limited(alike(replace(problem, workload=chain)), data)
    try:
        best = optimum(problem)
    except ValueError:
        with pytest.raises(NothingFits, match="exact looked at fits into"):
            exact(problem)
        return
    solution = exact(problem)
    prediction = problem.predict(solution.placement)
    assert not prediction.missing_bytes
    assert prediction.seconds_per_minibatch == pytest.approx(best)
    assert solution.proven_optimal


@given(problem=problems(max_operators=4, max_accelerators=3, hosts=2, divided=True), data=st.data())
@settings(max_examples=30)
def test_what_is_claimed_holds_for_several_hosts_and_any_memory(
    problem: PlanningProblem, data: st.DataObject
) -> None:
    problem = limited(alike(problem), data)
    try:
        solution = exact(problem)
    except NothingFits:
        # Branches need less memory than stages in a row; others may have missed them as well.
        return
    best = optimum(problem)
    check_placement(problem, solution.placement)
    prediction = problem.predict(solution.placement)
    assert not prediction.missing_bytes
    assert prediction.seconds_per_minibatch >= best * (1 - 1e-9)
    assert solution.lower_bound <= best * (1 + 1e-9)
    if solution.proven_optimal:
        assert prediction.seconds_per_minibatch == pytest.approx(best)


def wide(operators: int) -> Workload:
    """Operators side by side, 2ⁿ downsets of them."""
    zeros = numpy.zeros(operators)
    return Workload(
        model="wide",
        names=tuple(f"op{i}" for i in range(operators)),
        forward_seconds=zeros + 1,
        backward_seconds=zeros,
        update_seconds=zeros,
        parameter_bytes=zeros,
        kept_bytes=zeros,
        edges=(),
        transfers=(),
    )


def test_branches_side_by_side_fit_where_a_row_would_not() -> None:
    """Nobody waits for a stage on a branch of its own, so it keeps one minibatch, not three."""
    workload = replace(wide(3), kept_bytes=numpy.ones(3))
    cluster = local_cluster(3, Link(bandwidth_bytes_per_second=1.0), memory_bytes=1.0)
    solution = exact(PlanningProblem(workload, cluster))
    assert (solution.configuration, solution.lower_bound) == ("1-1-1", 1.0)
    assert solution.proven_optimal


@pytest.mark.parametrize(
    ("workload", "cluster", "said"),
    [
        (wide(40), cluster_of(4), "wide has too many sets of operators"),
        (wide(12), cluster_of(400), "for exact to look at all stages on 400"),
        (wide(2), cluster_of(2).with_speeds([1.0, 0.5]), "of one speed, and these differ"),
    ],
)
def test_what_it_does_not_look_at_is_refused(
    workload: Workload, cluster: Cluster, said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        exact(PlanningProblem(workload, cluster))


@pytest.mark.parametrize(
    ("name", "milliseconds"),
    [
        pytest.param(*item, marks=pytest.mark.slow if item[0] == "bert_l-3_training" else ())
        for item in CONTIGUOUS_OPTIMA.items()
    ],
)
def test_published_contiguous_optima(
    name: str, milliseconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StageSeconds, "of", serial)
    problem = read_instance(INSTANCES / f"{name}.json")
    solution = exact(problem)
    check_placement(problem, solution.placement)
    found = problem.predict(solution.placement).seconds_per_minibatch
    assert round(1e3 * found, 4) == milliseconds
    assert solution.proven_optimal


@given(workloads(max_operators=8))
@settings(max_examples=50)
def test_all_downsets_are_found_and_counted(workload: Workload) -> None:
    expected = {
        held
        for held in product([False, True], repeat=len(workload))
        if all(held[source] or not held[target] for source, target in workload.edges)
    }
    found = all_downsets(workload, 1000)
    assert found is not None
    assert {tuple(row) for row in found.tolist()} == expected
    assert len(found) == len(expected)
    assert all_downsets(workload, len(expected) - 1) is None
    assert (numpy.diff(found.sum(axis=1)) >= 0).all()


@given(workloads(max_operators=6))
@settings(max_examples=12)
def test_the_work_of_every_stage_is_that_of_its_operators(workload: Workload) -> None:
    downsets = all_downsets(workload, 1000)
    assert downsets is not None
    pairs = StagePairs.of(workload, downsets)
    pairs = pairs.with_working_bytes(workload)
    nested = (downsets[:, None] <= downsets).all(axis=2)
    assert len(pairs) == nested.sum() - len(downsets)
    for number in range(len(pairs)):
        begin, end = pairs.begin[number], pairs.end[number]
        assert pairs.first[begin] <= number < pairs.first[begin + 1]
        operators = numpy.flatnonzero(downsets[end] & ~downsets[begin]).tolist()
        work = workload.stage(operators, last=bool(downsets[end].all()))
        for field, value in vars(work).items():
            if field == "method":
                continue
            found = numpy.broadcast_to(getattr(pairs.work, field), len(pairs))
            assert numpy.isclose(found[number], value), field
