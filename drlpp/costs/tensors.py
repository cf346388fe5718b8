"""What stages exchange: the tensors between operators, and weights that several of them read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

from drlpp.capturing.graph import OpGraph, SharedParameter
from drlpp.costs.stage_cost import Array, Indices, sums_of

Flags = NDArray[numpy.bool_]

_ROWS = 1 << 12
"""Stages whose tensors are looked at at once."""


@dataclass(frozen=True)
class Transfer:
    """A tensor that has to be sent where stages divide its ``members``.

    Attributes:
        members: the operator that makes it, then those that read it. ``len(workload)`` stands for
            the loss, which is computed with the last stage.
        forward_bytes: sent to the readers.
        backward_bytes: of the gradient, sent back.
    """

    members: tuple[int, ...]
    forward_bytes: float
    backward_bytes: float

    @property
    def bytes_(self) -> float:
        """The bytes sent both ways."""
        return self.forward_bytes + self.backward_bytes


@dataclass(frozen=True)
class TransferArrays:
    """Transfers as arrays; their members are listed together, those of one tensor in a row.

    Attributes:
        tensor, member: tensor ``tensor[e]`` has the member ``member[e]``.
        maker: of every tensor.
        forward_bytes, backward_bytes: of every tensor.
    """

    tensor: Indices
    member: Indices
    maker: Indices
    forward_bytes: Array
    backward_bytes: Array

    @classmethod
    def of(cls, transfers: Sequence[Transfer]) -> TransferArrays:
        """Return the same, as arrays."""
        return cls(
            tensor=numpy.array([i for i, t in enumerate(transfers) for _ in t.members], dtype=int),
            member=numpy.array([m for t in transfers for m in t.members], dtype=int),
            maker=numpy.array([t.members[0] for t in transfers], dtype=int),
            forward_bytes=numpy.array([t.forward_bytes for t in transfers], dtype=float),
            backward_bytes=numpy.array([t.backward_bytes for t in transfers], dtype=float),
        )

    def crossing(self, sets: Flags, begin: Indices, end: Indices) -> tuple[Array, Array]:
        """Return the bytes that some stages receive and send, each ``(stages,)``.

        A tensor crosses the border of a stage that holds some of its members, but not all.

        Args:
            sets: which operators some sets hold, and which the loss; ``(sets, operators + 1)``.
            begin, end: of every stage the set that it begins behind, and the larger one, with which
                it ends.
        """
        incoming, outgoing = numpy.zeros((2, len(end)))
        if not len(self.maker):
            return incoming, outgoing
        firsts = numpy.flatnonzero(numpy.diff(self.tensor, prepend=-1))
        held = numpy.add.reduceat(sets[:, self.member].astype(numpy.int32), firsts, axis=1)
        made, members = sets[:, self.maker], numpy.bincount(self.tensor)
        for first in range(0, len(end), _ROWS):
            rows = slice(first, first + _ROWS)
            here = held[end[rows]] - held[begin[rows]]
            stage, tensor = ((here > 0) & (here < members)).nonzero()
            sent = made[end[rows][stage], tensor] & ~made[begin[rows][stage], tensor]
            forward, backward = self.forward_bytes[tensor], self.backward_bytes[tensor]
            for found, bytes_ in (
                (incoming, numpy.where(sent, backward, forward)),
                (outgoing, numpy.where(sent, forward, backward)),
            ):
                found[rows] = sums_of(stage, bytes_, len(here))
        return incoming, outgoing


def transfers_of(graph: OpGraph) -> Iterator[Transfer]:
    """Yield every output of an operator as one tensor; what the model returns the loss reads."""
    readers: dict[tuple[int, int], list[int]] = {}
    for edge in graph.edges:
        for output in edge.outputs:
            readers.setdefault((edge.source, output), []).append(edge.target)
    for returned in graph.outputs:
        readers.setdefault(returned, []).append(len(graph))
    for (operator, output), found in sorted(readers.items()):
        tensor = graph.operators[operator].outputs[output]
        members = (operator, *sorted(set(found)))
        yield Transfer(members, tensor.bytes_, tensor.bytes_ * tensor.differentiable)


def ties_of(graph: OpGraph) -> tuple[SharedParameter, ...]:
    """Return the shared parameters of a graph, those of the same operators as one, the last."""
    found: dict[tuple[tuple[int, ...], bool], SharedParameter] = {}
    for shared in graph.shared_parameters:
        key = shared.operators, shared.trained
        bytes_ = shared.bytes_ + (found[key].bytes_ if key in found else 0)
        found[key] = shared.model_copy(update={"bytes_": bytes_})
    return tuple(found.values())
