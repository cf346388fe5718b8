"""Operators joined where every good assignment has them together, and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import networkx
import numpy

from drlpp.costs.stage_cost import CostModel
from drlpp.costs.stage_work import Array, StageWork
from drlpp.costs.tensors import Transfer
from drlpp.costs.workload import Workload
from drlpp.planners.problem.problem import PlanningProblem

# Costs may differ by rounding.
_TOLERANCE = 1e-9


@dataclass(frozen=True)
class Items:
    """What is assigned as a whole: operators, and the loss as the operator ``len(workload)``.

    Attributes:
        operators: of every item; the largest item comes first.
        seconds: of every item, with its share of updates, at speed 1.
        memory_bytes: of every item with one minibatch in flight; messages, and what operators need
            while they compute, are left out.
        tensors: whose members are items; those that are always cut together are one.
    """

    operators: tuple[tuple[int, ...], ...]
    seconds: Array
    memory_bytes: Array
    tensors: tuple[Transfer, ...]

    @classmethod
    def of(cls, problem: PlanningProblem, within_seconds: float) -> Items:
        """Join what every assignment that takes at most ``within_seconds`` has on one accelerator.

        Two reasons keep a tensor of c seconds from being cut. It takes longer than that, alone; or,
        with serial costs, no time is left: accelerators of speeds v do Σ v · seconds of work at
        most, the operators need P of it, and the tensor, twice, at least 2 c · min v.
        """
        workload = problem.workload
        has_loss = any(len(workload) in transfer.members for transfer in workload.transfers)
        apart: networkx.Graph[int] = networkx.Graph()
        apart.add_nodes_from(range(len(workload) + has_loss))
        longest = _longest_tensor(problem, within_seconds)
        while True:
            groups = [tuple(sorted(group)) for group in networkx.connected_components(apart)]
            items = cls._of_groups(problem, groups)
            joined = [t for t in items.tensors if _seconds(t, problem.costs) > longest]
            if not joined:
                return items
            for tensor in joined:
                networkx.add_path(apart, [items.operators[m][0] for m in tensor.members])

    @classmethod
    def _of_groups(cls, problem: PlanningProblem, groups: Iterable[tuple[int, ...]]) -> Items:
        workload = problem.workload
        # The loss costs nothing.
        seconds = numpy.append(workload.seconds + workload.update_seconds, 0.0)
        memory = numpy.append(_memory_bytes(problem), 0.0)
        operators = sorted(groups, key=lambda group: (-seconds[list(group)].sum(), group))
        return cls(
            operators=tuple(operators),
            seconds=numpy.array([seconds[list(group)].sum() for group in operators]),
            memory_bytes=numpy.array([memory[list(group)].sum() for group in operators]),
            tensors=_tensors(workload, operators, problem.costs),
        )

    @property
    def item_of(self) -> dict[int, int]:
        """The item of every operator."""
        return {op: item for item, operators in enumerate(self.operators) for op in operators}


def fastest_bandwidths(problem: PlanningProblem) -> tuple[float, ...]:
    """Return the bandwidth of every accelerator's best link, in bytes per second."""
    cluster = problem.cluster
    everyone = range(cluster.accelerators)
    return tuple(
        max(
            (
                cluster.link(one, other).bandwidth_bytes_per_second
                for other in everyone
                if other != one
            ),
            default=cluster.within_host.bandwidth_bytes_per_second,
        )
        for one in everyone
    )


def _longest_tensor(problem: PlanningProblem, within_seconds: float) -> float:
    """Return the bytes beyond which a tensor cannot be cut."""
    workload, speeds = problem.workload, problem.cluster.speeds
    longest = within_seconds
    if problem.costs == "serial":
        work = float((workload.seconds + workload.update_seconds).sum())
        longest = min(longest, (within_seconds * sum(speeds) - work) / (2 * min(speeds)))
    return max(0.0, longest) * max(fastest_bandwidths(problem)) * (1 + _TOLERANCE)


def _seconds(tensor: Transfer, costs: CostModel) -> float:
    if costs == "serial":
        return tensor.bytes_
    return max(tensor.forward_bytes, tensor.backward_bytes)


def _memory_bytes(problem: PlanningProblem) -> Array:
    workload = problem.workload
    nothing = numpy.zeros(len(workload))
    work = StageWork(
        seconds=nothing,
        one_backward_seconds=nothing,
        update_seconds=nothing,
        sharing_seconds=nothing,
        parameter_bytes=workload.parameter_bytes,
        kept_bytes=workload.kept_bytes,
        incoming_bytes=nothing,
        outgoing_bytes=nothing,
    )
    return problem.memory.stage_bytes(work, 1)


def _tensors(
    workload: Workload, operators: Sequence[tuple[int, ...]], costs: CostModel
) -> tuple[Transfer, ...]:
    item_of = {op: item for item, group in enumerate(operators) for op in group}
    sums: dict[tuple[int, ...], tuple[float, float]] = {}
    for transfer in workload.transfers:
        source, *readers = (item_of[member] for member in transfer.members)
        others = sorted(set(readers) - {source})
        # Serial costs do not tell a source from a reader.
        members = tuple(sorted({source, *others})) if costs == "serial" else (source, *others)
        if others and transfer.bytes_ > 0:
            forward, backward = sums.get(members, (0.0, 0.0))
            sums[members] = forward + transfer.forward_bytes, backward + transfer.backward_bytes
    return tuple(Transfer(members, *bytes_) for members, bytes_ in sorted(sums.items()))
