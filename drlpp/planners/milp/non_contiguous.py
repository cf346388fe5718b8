"""The best assignment of operators to accelerators, contiguous or not, as a mixed-integer program.

After the integer program of Tarnawski et al. 2020 without its contiguity: x[i, d] = 1 where
accelerator d holds operator i, and continuous variables for the tensors that cross d's border.

    minimise L   with   Σ_d x[i, d] = 1                                         every operator i
                        compute and messages of d take at most L                every accelerator d
                        memory of d is at most its limit

``serial`` counts a tensor once on every accelerator that holds some of its members and not all:
cut[t, d] = max_i x[i, d] − min_i x[i, d] over the members i. ``overlapped`` tells directions apart:
of a tensor with the source p and a reader r, out[t, d] ≥ x[p, d] − x[r, d] and
in[t, d] ≥ x[r, d] − x[p, d].

What makes it solvable, given a placement that takes U seconds:

* tensors that cannot be cut within U join their members beforehand;
* of operators too large for more than n of them to fit within U, an accelerator holds at most n
  (cover inequalities, of which L alone has none);
* equal accelerators are numbered by the first operator that they hold, in the order of size. So the
  largest operator has its place, and the relaxation's bound is no longer that of an even split, but
  at least the smallest cut around that operator.

A stage may depend on itself through others then: the result bounds what contiguous stages lose, and
is not always a placement that a pipeline can run (:func:`is_runnable`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import networkx

from drlpp.costs.workload import Workload
from drlpp.errors import InvalidInput
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.milp.assignment_program import AssignmentProgram
from drlpp.planners.milp.items import Items
from drlpp.planners.problem.objective import AnalyticObjective
from drlpp.planners.problem.problem import PlanningProblem, Solution
from drlpp.planners.search.local_search import anneal

# Of each of the two searches for a start: seconds for a hundred operators.
_EVALUATIONS_PER_OPERATOR = 40


def non_contiguous(problem: PlanningProblem, relative_gap: float = 1e-3) -> Solution:
    """Find the optimum over all assignments of operators, one accelerator for each.

    The bound holds for every unreplicated placement, and is only given for problems without
    replication. It is below the optimum in five cases: where links differ, since it gives every
    accelerator its fastest; where a tensor is sent to several stages, since it counts it
    once; where memory rules, since it counts one minibatch in flight, and not what computing it
    needs;
    where passes and updates take something besides their operators, which it leaves out; and where
    copies of weights that operators share take memory or updates, of which it counts one.

    Args:
        problem: its time limit is the solver's, which uses one thread.
        relative_gap: between result and bound, below which the result counts as optimal.

    Raises:
        InvalidInput: if no assignment keeps the limits of memory.
    """
    may_replicate, problem = problem.replicate, replace(problem, replicate=False)
    objective = AnalyticObjective(problem)
    best = min(_starts(problem), key=objective)
    value = objective(best)
    if value == 0:
        return Solution(best, proven_optimal=not may_replicate, note=_note(problem.workload, best))
    once = replace(problem, workload=_ties_as_tensors(problem.workload))
    items = Items.of(once, value)
    program = AssignmentProgram(once, items, value)
    start = _assignment(items, best, len(problem.workload)) if objective.fits(value) else None
    outcome = program.solve(start, problem.time_limit_seconds, relative_gap)
    if start is None and not outcome.feasible:
        raise InvalidInput(
            "no assignment of operators keeps the limits of memory: "
            f"{sum(items.memory_bytes):.4g} bytes are needed without messages, and accelerators "
            f"have {list(problem.cluster.memory_bytes)}"
        )
    if outcome.assignment is not None:
        found = _placement(problem.workload, items, outcome.assignment)
        best = min(best, found, key=objective)
        value = objective(best)
    bound = min(outcome.bound_seconds, value)
    return Solution(
        best,
        lower_bound=0.0 if may_replicate else bound,
        proven_optimal=not may_replicate
        and objective.fits(value)
        and value - bound <= relative_gap * value,
        note=_note(problem.workload, best),
    )


def _ties_as_tensors(workload: Workload) -> Workload:
    """Return a workload that has what copies of weights exchange as tensors, and one of them."""
    exchanged = (*workload.transfers, *workload.tied_transfers())
    return replace(workload.with_ties_once(), transfers=exchanged)


def is_runnable(workload: Workload, placement: Placement) -> bool:
    """Return whether a pipeline can run the placement: no edge leads back to an earlier stage."""
    stage_of = placement.stage_of_operator(len(workload))
    return all(stage_of[source] <= stage_of[target] for source, target in workload.edges)


def _note(workload: Workload, placement: Placement) -> str:
    if is_runnable(workload, placement):
        return "best assignment; its stages happen to be contiguous"
    return "best assignment; a bound, not a placement that a pipeline can run"


def _starts(problem: PlanningProblem) -> tuple[Placement, Placement]:
    """Return a good placement, and a good assignment.

    Without edges, every assignment is a placement.
    """
    evaluations = _EVALUATIONS_PER_OPERATOR * len(problem.workload)
    no_order = replace(problem, workload=replace(problem.workload, edges=()))
    return anneal(problem, evaluations).best, anneal(no_order, evaluations).best


def _assignment(items: Items, placement: Placement, loss: int) -> list[int]:
    """Return the accelerator of every item; the loss is the operator after all others."""
    device_of = {op: stage.accelerators[0] for stage in placement.stages for op in stage.operators}
    device_of[loss] = placement.stages[-1].accelerators[0]
    return [device_of[operators[0]] for operators in items.operators]


def _placement(workload: Workload, items: Items, assignment: Sequence[int]) -> Placement:
    """Return stages in a topological order if there is one; the last computes the loss."""
    held: dict[int, list[int]] = {}
    last = None
    for operators, device in zip(items.operators, assignment, strict=True):
        held.setdefault(device, []).extend(op for op in operators if op < len(workload))
        if len(workload) in operators:
            last = device
    device_of = {operator: device for device, ops in held.items() for operator in ops}
    order: networkx.DiGraph[int] = networkx.DiGraph()
    by_first_operator = [device_of[operator] for operator in sorted(device_of)]
    order.add_nodes_from(by_first_operator)
    order.add_edges_from(
        (device_of[source], device_of[target])
        for source, target in workload.edges
        if device_of[source] != device_of[target]
    )
    if last is not None:
        order.add_edges_from((device, last) for device in held if device != last)
    devices: list[int]
    if networkx.is_directed_acyclic_graph(order):
        devices = list(networkx.topological_sort(order))
    else:
        devices = sorted(held, key=lambda device: device == last)
    return Placement(
        stages=tuple(
            Stage(operators=tuple(sorted(held[device])), accelerators=(device,))
            for device in devices
        )
    )
