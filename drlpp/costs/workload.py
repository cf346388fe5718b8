"""What planners plan: operators with costs, their order, and the tensors between them, as arrays.

It comes from a profile (:meth:`Workload.of`). Times are seconds for one minibatch, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy
from numpy.typing import NDArray

from drlpp.capturing.graph import SharedParameter, neighbours
from drlpp.costs.memory import beyond_kept, working_bytes_of
from drlpp.costs.profile import NO_FACTORS, Profile, RunFactors
from drlpp.costs.stage_cost import Array, Indices, StageWork, sums_of
from drlpp.costs.tensors import Transfer, TransferArrays, ties_of, transfers_of
from drlpp.placement.placement import Placement
from drlpp.schedule.method import DEFAULT_METHOD, Method

_AS_IN_A_PROFILE = (
    *("forward_overhead_seconds", "backward_overhead_seconds", "update_overhead_seconds"),
    *("split_seconds", "weight_share", "fixed_share"),
    *("prediction_seconds_per_byte", "sharing_seconds_per_byte"),
)


@dataclass(frozen=True)
class Workload:
    """Operators 0, 1, … in a topological order; arrays hold a value for each.

    Attributes:
        model: what it is.
        names: of the operators.
        forward_seconds, backward_seconds: of a minibatch, on an accelerator of speed 1.
        update_seconds: of the optimizer.
        parameter_bytes: of the weights.
        kept_bytes: from the forward to the backward pass of a minibatch.
        working_bytes: while they compute, and then those of the loss
            (:mod:`drlpp.costs.memory`).
        edges: pairs of operators, the first of which may not stand in a later stage.
        transfers: the tensors between operators.
        ties: the weights that several operators read.
        kinds: what every operator is, such as ``conv2d``; empty if it is not known.
        forward_overhead_seconds, …, fixed_share: as in a :class:`~drlpp.costs.profile.Profile`.
            What short runs took longer (``in_pipeline``, ``replicated``) the simulator has, and
            formulas do not: they are bounds.
        method: that runs it.
    """

    model: str
    names: tuple[str, ...]
    forward_seconds: Array
    backward_seconds: Array
    update_seconds: Array
    parameter_bytes: Array
    kept_bytes: Array
    working_bytes: Array
    edges: tuple[tuple[int, int], ...]
    transfers: tuple[Transfer, ...]
    ties: tuple[SharedParameter, ...] = ()
    kinds: tuple[str, ...] = ()
    forward_overhead_seconds: float = 0.0
    backward_overhead_seconds: float = 0.0
    split_seconds: float = 0.0
    weight_share: float = 0.5
    update_overhead_seconds: float = 0.0
    prediction_seconds_per_byte: float = 0.0
    sharing_seconds_per_byte: float = 0.0
    in_pipeline: RunFactors = NO_FACTORS
    replicated: RunFactors = NO_FACTORS
    fixed_share: float = 0.0
    method: Method = DEFAULT_METHOD

    @classmethod
    def of(cls, profile: Profile, method: Method = DEFAULT_METHOD) -> Workload:
        """Return the workload of a profiled model.

        Args:
            profile: the model and its costs.
            method: says whether weights are predicted, or corrected, for passes, and how many
                passes a minibatch takes.
        """
        graph = profile.graph
        parameter_bytes = numpy.array([op.parameter_bytes for op in graph.operators], dtype=float)
        costs = profile.operators
        whole = cls(
            model=graph.model,
            names=tuple(operator.name for operator in graph.operators),
            forward_seconds=numpy.array([op.forward_seconds for op in costs]),
            backward_seconds=numpy.array([op.backward_seconds for op in costs]),
            update_seconds=parameter_bytes * profile.update_seconds_per_byte,
            parameter_bytes=parameter_bytes,
            kept_bytes=numpy.array([op.kept_bytes for op in costs], dtype=float),
            edges=tuple((edge.source, edge.target) for edge in graph.edges),
            transfers=tuple(transfers_of(graph)),
            working_bytes=working_bytes_of(profile),
            ties=ties_of(graph),
            kinds=tuple(operator.type for operator in graph.operators),
            in_pipeline=profile.in_pipeline or NO_FACTORS,
            replicated=profile.replicated or NO_FACTORS,
            **{name: getattr(profile, name) for name in _AS_IN_A_PROFILE},
        )
        return whole.with_method(method)

    def with_method(self, method: Method) -> Workload:
        """Return the same model under another method, with what its passes take then."""
        # What all microbatches of a minibatch take together, as a multiple of a whole one.
        then, now = (
            1 + self.fixed_share * (m - 1) for m in (method.microbatches, self.method.microbatches)
        )
        return replace(
            self,
            forward_seconds=self.forward_seconds * (then / now),
            backward_seconds=self.backward_seconds * (then / now),
            method=method,
        )

    def __len__(self) -> int:
        return len(self.names)

    @property
    def stages_held(self) -> int:
        """How many stages an accelerator holds."""
        return self.method.schedule_kind.stages_held

    @cached_property
    def seconds(self) -> Array:
        """Forward plus backward seconds of every operator."""
        return self.forward_seconds + self.backward_seconds

    @cached_property
    def backward_weight_seconds(self) -> Array:
        """What the half of a backward for weights takes of every operator's backward.

        Nothing where there are no weights. The rest is the half for inputs.
        """
        return self.weight_share * self.backward_seconds * (self.parameter_bytes > 0)

    @cached_property
    def half_done_bytes(self) -> Array:
        """What every operator keeps between the halves of its backward, beyond its activations.

        That is the gradient of its outputs, if it has weights.
        """
        tensors = self.transfer_arrays
        bytes_ = sums_of(tensors.maker, tensors.backward_bytes, len(self))
        return bytes_ * (self.parameter_bytes > 0)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For every operator those that may not stand in a later stage than it."""
        return neighbours(len(self), ((target, source) for source, target in self.edges))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For every operator those that may not stand in an earlier stage than it."""
        return neighbours(len(self), self.edges)

    @cached_property
    def transfer_arrays(self) -> TransferArrays:
        """The transfers, as arrays."""
        return TransferArrays.of(self.transfers)

    @cached_property
    def transfers_of_member(self) -> tuple[tuple[int, ...], ...]:
        """For every operator, and then for the loss, numbers of the transfers it is a member of."""
        found: list[list[int]] = [[] for _ in range(len(self) + 1)]
        for number, transfer in enumerate(self.transfers):
            for member in transfer.members:
                found[member].append(number)
        return tuple(map(tuple, found))

    def stage(self, operators: Sequence[int], *, last: bool) -> StageWork:
        """Return what a stage of these operators does for a minibatch.

        The ``last`` stage also has the loss.
        """
        chosen = list(operators)
        sets = numpy.zeros((2, len(self) + 1), dtype=bool)
        sets[1, chosen], sets[1, -1] = True, last
        only = numpy.array([0])
        (incoming,), (outgoing,) = self.transfer_arrays.crossing(sets, only, only + 1)
        return self.work_of(
            lambda values: values[chosen].sum(),
            incoming_bytes=numpy.asarray(incoming),
            outgoing_bytes=numpy.asarray(outgoing),
            last=numpy.asarray(last),
            working_bytes=self.working_bytes_of_sets(sets[1:, :-1], numpy.array([last]))[0],
        )

    def working_bytes_of_sets(
        self,
        inside: NDArray[numpy.bool_],
        last: NDArray[numpy.bool_],
        replicas: Indices | None = None,
    ) -> Array:
        """Return what stages need beyond what they keep, by their operators and who is last.

        Shapes are ``(stages, operators)`` and ``(stages,)``. Where the number of ``replicas`` is
        not known, gradients of one part count as if they were there all the time.
        """
        working, kept, method = self.working_bytes, self.kept_bytes, self.method
        # A weight's gradient is as large for every part.
        own = method.microbatches * self.parameter_bytes
        added = beyond_kept(working + numpy.append(own, 0.0), kept, inside, last)
        if method.parts_of_update(1) > 1:
            if not method.schedule_kind.splits_backward:
                return added
            # The later half of a backward gives the gradients of all weights together. A stage that
            # sends nothing back makes whole ones.
            sources, targets = numpy.array(self.edges, dtype=int).reshape(-1, 2).T
            halves = (inside[:, targets] & ~inside[:, sources]).any(axis=1)
            return numpy.where(
                halves, beyond_kept(working, kept, inside, last) + inside @ own, added
            )
        if replicas is None or self.stages_held > 1:
            return beyond_kept(working, kept, inside, last)
        made = inside * self.parameter_bytes
        for tie in self.ties:
            # The last of its operators makes a gradient, to which the others add.
            readers = inside[:, list(tie.operators)]
            again = readers[:, ::-1].cumsum(axis=1)[:, ::-1] > readers
            made[:, list(tie.operators)] -= (readers & again) * tie.bytes_
        alone = beyond_kept(working, kept, inside, last, made)
        return numpy.where(replicas > 1, added, alone)

    def work_of(
        self,
        total: Callable[[Array], Array],
        *,
        incoming_bytes: Array,
        outgoing_bytes: Array,
        last: NDArray[numpy.bool_],
        working_bytes: Array | float = 0.0,
    ) -> StageWork:
        """Return the work of stages from sums over their operators and what crosses their borders.

        To the operators' times it adds what passes and updates of a stage take in addition. The
        gradients of microbatches are collected whether or not a stage is replicated. Weights that
        several operators of a stage read are there once. Of the passes of an update at least one
        meets another update on its way, and predicts.

        Args:
            total: sums a value of every operator over each stage.
            incoming_bytes, outgoing_bytes: as in :class:`StageWork`.
            last: which stage has the loss.
            working_bytes: as in :class:`StageWork`.
        """
        parts = self.method.microbatches
        seconds, backward_seconds = total(self.seconds), total(self.backward_seconds)
        update_seconds = total(self.update_seconds)
        parameter_bytes = total(self.parameter_bytes)
        tied_bytes, tied_update_seconds = numpy.zeros((2, *parameter_bytes.shape))
        for tie in self.ties:
            reads = numpy.zeros(len(self))
            reads[list(tie.operators)] = 1.0
            readers = total(reads)
            again = numpy.maximum(readers - 1, 0)
            of_update = self.tied_update_seconds(tie)
            parameter_bytes = parameter_bytes - again * tie.bytes_
            update_seconds = update_seconds - again * of_update
            if tie.trained:
                apart = (readers > 0) & (readers < len(tie.operators))
                tied_bytes = tied_bytes + apart * tie.bytes_
                tied_update_seconds = tied_update_seconds + apart * of_update
        moves = self.method.lookahead is not None
        moving = parameter_bytes * self.prediction_seconds_per_byte * moves
        predicted = moving * ~last / self.method.accumulate
        overhead = self.forward_overhead_seconds + self.backward_overhead_seconds
        sharing = parameter_bytes * self.sharing_seconds_per_byte
        # At the most.
        one_backward = backward_seconds / parts + self.backward_overhead_seconds + sharing + moving
        if parts > 1:
            overhead = overhead * parts
            seconds, sharing = seconds + sharing * parts, numpy.zeros_like(sharing)
        return StageWork(
            seconds=seconds + overhead + predicted,
            one_backward_seconds=one_backward,
            update_seconds=update_seconds + self.update_overhead_seconds * (parameter_bytes > 0),
            sharing_seconds=sharing,
            parameter_bytes=parameter_bytes,
            kept_bytes=total(self.kept_bytes),
            incoming_bytes=incoming_bytes,
            outgoing_bytes=outgoing_bytes,
            working_bytes=numpy.asarray(working_bytes, dtype=float),
            tied_bytes=tied_bytes,
            tied_update_seconds=tied_update_seconds,
            tied_updates=numpy.ones_like(tied_bytes),
            method=self.method,
        )

    def run_factors(self, placement: Placement) -> list[RunFactors]:
        """Return what each stage of a placement takes longer in a run, by its number of replicas.

        Replicas of a stage of a pipeline have the larger of the two.
        """
        found = []
        for stage in placement.stages:
            of_stage = [NO_FACTORS]
            if len(placement.stages) > 1:
                of_stage.append(self.in_pipeline)
            if len(stage.accelerators) > 1:
                of_stage.append(self.replicated)
            found.append(max(of_stage, key=lambda factors: (factors.seconds, factors.spread)))
        return found

    def error_bar(self, placement: Placement) -> float:
        """Return how far off what the simulator says of a placement may be, such as 0.06.

        It is the standard deviation of the logarithm; 0 where the profile has no short runs to tell
        it, as it has none of a single accelerator.
        """
        return max(factors.spread for factors in self.run_factors(placement))

    def tied_update_seconds(self, tie: SharedParameter) -> float:
        """Return the seconds of the optimizer for an update of some weights."""
        reader = tie.operators[0]
        share = tie.bytes_ / self.parameter_bytes[reader] if tie.bytes_ else 0.0
        return float(share * self.update_seconds[reader])
