"""The mixed-integer program of :mod:`drlpp.planners.milp.non_contiguous`, for HiGHS."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import highspy
import numpy

from drlpp.costs.tensors import Transfer
from drlpp.planners.milp.items import Items, fastest_bandwidths
from drlpp.planners.problem.problem import PlanningProblem

# Where more operators than this fit on an accelerator, the relaxation itself limits their number.
_MOST_COVERED = 20

# Rows that number equal accelerators are dense; those of the largest operators do the most.
_NUMBERED_ITEMS_PER_ACCELERATOR = 4

_ROUNDING = 1e-6

# A column and its factor.
Terms = list[tuple[int, float]]


@dataclass(frozen=True)
class Outcome:
    """What the solver found.

    Attributes:
        assignment: the accelerator of every item, or None if it found none.
        bound_seconds: that no assignment takes less than.
        feasible: False where it proved that no assignment keeps the limits.
    """

    assignment: tuple[int, ...] | None
    bound_seconds: float
    feasible: bool


class AssignmentProgram:
    """Assign every item to an accelerator within ``within_seconds``, as fast as possible.

    Time is measured in units of ``within_seconds``, memory in units of an accelerator's limit.
    """

    def __init__(self, problem: PlanningProblem, items: Items, within_seconds: float) -> None:
        self._problem = problem
        self._items = items
        self._unit = within_seconds
        self._devices = problem.cluster.accelerators
        self._bandwidths = fastest_bandwidths(problem)
        self._solver = highspy.Highs()
        self._solver.setOptionValue("output_flag", False)
        self._solver.setOptionValue("threads", 1)
        self._solver.setOptionValue("random_seed", problem.seed)
        count = len(items.operators) * self._devices
        self._solver.addVars(count, numpy.zeros(count), numpy.ones(count))
        integer = numpy.full(count, highspy.HighsVarType.kInteger)
        self._solver.changeColsIntegrality(count, numpy.arange(count), integer)
        self._load = self._column(0.0, 1.0 + _ROUNDING)
        self._solver.changeColCost(self._load, 1.0)
        for item in range(len(items.operators)):
            self._row(1.0, [(self._x(item, d), 1.0) for d in range(self._devices)], 1.0)
        for device in range(self._devices):
            self._add_device(device)
        for group in self._equal_devices():
            self._number(group)
        self._keep_the_loss_company()

    def solve(
        self, start: Sequence[int] | None, time_limit_seconds: float, relative_gap: float
    ) -> Outcome:
        """Search until the gap is closed or time is up, from a ``start`` if there is one."""
        solver = self._solver
        solver.setOptionValue("time_limit", time_limit_seconds)
        solver.setOptionValue("mip_rel_gap", relative_gap)
        if start is not None:
            self._start_from(start)
        solver.run()
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return Outcome(None, self._unit, feasible=False)
        info = solver.getInfo()
        assignment = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            values = numpy.array(solver.getSolution().col_value[: self._load])
            chosen = values.reshape(-1, self._devices).argmax(axis=1)
            assignment = tuple(int(device) for device in chosen)
        return Outcome(assignment, max(0.0, info.mip_dual_bound) * self._unit, feasible=True)

    def _x(self, item: int, device: int) -> int:
        return item * self._devices + device

    def _column(self, lower: float = 0.0, upper: float = 1.0) -> int:
        self._solver.addVar(lower, upper)
        return self._solver.getNumCol() - 1

    def _row(self, lower: float, terms: Terms, upper: float) -> None:
        # HiGHS takes a column once per row; memory counts what is sent and what comes back.
        factors: dict[int, float] = {}
        for column, factor in terms:
            factors[column] = factors.get(column, 0.0) + factor
        columns = numpy.array(list(factors))
        status = self._solver.addRow(
            lower, upper, len(columns), columns, numpy.array(list(factors.values()))
        )
        if status == highspy.HighsStatus.kError:
            raise ValueError(f"HiGHS refused a row of {len(columns)} columns")

    def _at_most(self, terms: Terms, upper: float) -> None:
        self._row(-highspy.kHighsInf, terms, upper)

    def _add_device(self, device: int) -> None:
        speed = self._problem.cluster.speeds[device] * self._unit
        compute = [
            (self._x(item, device), seconds / speed)
            for item, seconds in enumerate(self._items.seconds)
            if seconds > 0
        ]
        if self._problem.costs == "serial":
            messages = self._both_ways(device)
            self._within_load([compute + self._scaled(messages, device)])
        else:
            incoming, outgoing = self._each_way(device)
            messages = incoming + outgoing
            self._within_load(
                [compute, self._scaled(incoming, device), self._scaled(outgoing, device)]
            )
        self._limit_memory(device, messages)
        self._cover(device, speed)

    def _scaled(self, bytes_: Terms, device: int) -> Terms:
        per_unit = self._bandwidths[device] * self._unit
        return [(column, factor / per_unit) for column, factor in bytes_]

    def _within_load(self, sums: Iterable[Terms]) -> None:
        for terms in sums:
            if terms:
                self._at_most([*terms, (self._load, -1.0)], 0.0)

    def _both_ways(self, device: int) -> Terms:
        """Return the bytes of all tensors that the device holds some members of, and not all."""
        bytes_: Terms = []
        for tensor in self._items.tensors:
            held = [self._x(member, device) for member in tensor.members]
            if len(held) == 2:
                cut = self._column()
                for one, other in (held, held[::-1]):
                    self._at_most([(one, 1.0), (other, -1.0), (cut, -1.0)], 0.0)
                bytes_.append((cut, tensor.bytes_))
                continue
            some, all_ = self._column(), self._column()
            for column in held:
                self._at_most([(column, 1.0), (some, -1.0)], 0.0)
                self._at_most([(all_, 1.0), (column, -1.0)], 0.0)
            bytes_ += [(some, tensor.bytes_), (all_, -tensor.bytes_)]
        return bytes_

    def _each_way(self, device: int) -> tuple[Terms, Terms]:
        """Return incoming and outgoing bytes."""
        incoming: Terms = []
        outgoing: Terms = []
        for tensor in self._items.tensors:
            sends, receives = self._column(), self._column()
            source, *readers = (self._x(member, device) for member in tensor.members)
            for reader in readers:
                self._at_most([(source, 1.0), (reader, -1.0), (sends, -1.0)], 0.0)
                self._at_most([(reader, 1.0), (source, -1.0), (receives, -1.0)], 0.0)
            incoming += _terms(tensor, receives, sends)
            outgoing += _terms(tensor, sends, receives)
        return incoming, outgoing

    def _limit_memory(self, device: int, messages: Terms) -> None:
        limit = self._problem.cluster.memory_bytes[device]
        if limit is None:
            return
        held = [
            (self._x(item, device), bytes_ / limit)
            for item, bytes_ in enumerate(self._items.memory_bytes)
        ]
        self._at_most([*held, *((column, factor / limit) for column, factor in messages)], 1.0)

    def _cover(self, device: int, speed: float) -> None:
        """Limit the operators from some size on to as many as the smallest that fit together."""
        seconds = self._items.seconds / speed
        ascending = numpy.argsort(seconds, kind="stable")
        sums = numpy.concatenate(([0.0], numpy.cumsum(seconds[ascending])))
        known = len(ascending) + 1
        for first in range(len(ascending)):
            fits = sums <= sums[first] + 1.0 + _ROUNDING
            most = int(numpy.flatnonzero(fits)[-1]) - first
            # As many from the next size on would follow from this.
            if most < known and most <= _MOST_COVERED and most < len(ascending) - first:
                self._at_most(
                    [(self._x(int(item), device), 1.0) for item in ascending[first:]], float(most)
                )
                known = most

    def _equal_devices(self) -> list[list[int]]:
        cluster = self._problem.cluster
        groups: dict[object, list[int]] = {}
        for device, bandwidth in enumerate(self._bandwidths):
            key = cluster.speeds[device], cluster.memory_bytes[device], bandwidth
            groups.setdefault(key, []).append(device)
        return list(groups.values())

    def _number(self, group: Sequence[int]) -> None:
        """Let an item open a device only if a larger one, or none, has opened that before it."""
        numbered = min(len(self._items.operators), _NUMBERED_ITEMS_PER_ACCELERATOR * len(group))
        for before, device in pairwise(group):
            for item in range(numbered):
                larger = [(self._x(other, before), -1.0) for other in range(item)]
                self._at_most([(self._x(item, device), 1.0), *larger], 0.0)

    def _keep_the_loss_company(self) -> None:
        """Give the device of the loss other operators too, since a stage computes the loss."""
        loss = len(self._problem.workload)
        alone = next((i for i, ops in enumerate(self._items.operators) if ops == (loss,)), None)
        if alone is None:
            return
        for device in range(self._devices):
            others = [
                (self._x(item, device), -1.0)
                for item in range(len(self._items.operators))
                if item != alone
            ]
            self._at_most([(self._x(alone, device), 1.0), *others], 0.0)

    def _start_from(self, start: Sequence[int]) -> None:
        renamed: dict[int, int] = {}
        for group in self._equal_devices():
            # The rows of `_number` ask for this order.
            opened = list(dict.fromkeys(device for device in start if device in group))
            renamed |= dict(zip(opened, group, strict=False))
        values = numpy.zeros((len(start), self._devices))
        values[numpy.arange(len(start)), [renamed[device] for device in start]] = 1.0
        self._solver.setSolution(values.size, numpy.arange(values.size), values.ravel())


def _terms(tensor: Transfer, with_source: int, without_source: int) -> Terms:
    """Return the bytes of a tensor: activations go one way, gradients the other."""
    both = ((with_source, tensor.forward_bytes), (without_source, tensor.backward_bytes))
    return [(column, bytes_) for column, bytes_ in both if bytes_ > 0]
