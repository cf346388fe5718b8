"""The operator graph: what a model computes, as a DAG of operators whose edges carry tensors."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate, takewhile
from typing import Any, ClassVar

from pydantic import model_validator

from drlpp.io.documents import Document, Record
from drlpp.io.quantities import Count

_LISTED = re.compile(r"(?:[^.]+\.)*?\d+(?=\.)")


class TensorSpec(Record):
    """Shape and element type (torch's name without the prefix, like ``float32``) of a tensor."""

    shape: tuple[Count, ...]
    dtype: str
    bytes_: Count

    @classmethod
    def of(cls, value: Any) -> TensorSpec:
        """Return those of a tensor, which may be fake."""
        dtype = str(value.dtype).removeprefix("torch.")
        return cls(shape=tuple(value.shape), dtype=dtype, bytes_=value.nbytes)

    @property
    def differentiable(self) -> bool:
        """Whether gradients flow back through this tensor; they do not for integers and masks."""
        return "float" in self.dtype or "complex" in self.dtype


class Operator(Record):
    """A node of the computational graph.

    ``type`` is the aten operator (``conv2d``), ``module`` the dotted name of the ``nn.Module``
    that owns it, ``outputs`` the tensors that other operators or the caller read.
    """

    id: Count
    name: str
    type: str
    module: str
    parameter_bytes: Count
    outputs: tuple[TensorSpec, ...]

    @property
    def output_bytes(self) -> int:
        """Bytes of all tensors that this operator gives away."""
        return sum(output.bytes_ for output in self.outputs)


class Edge(Record):
    """Operator ``target`` reads the tensors ``outputs`` (indices) of operator ``source``."""

    source: Count
    target: Count
    outputs: tuple[Count, ...]


class SharedParameter(Record):
    """A parameter that several operators read; a stage that has some of them holds one copy.

    ``operators`` are sorted, at least two, and each counts ``bytes_`` among its own parameters. A
    parameter that is not ``trained`` is frozen: its copies never change.
    """

    name: str
    bytes_: Count
    operators: tuple[Count, ...]
    trained: bool = True


def copies_of(
    shared: Iterable[SharedParameter], stage_of: Sequence[int]
) -> dict[tuple[int, ...], tuple[SharedParameter, ...]]:
    """Return the trained ones of which several stages hold a copy, by these stages, sorted.

    Copies get the same updates, which the stages make together (:mod:`drlpp.schedule.ties`). Frozen
    parameters are left out: their copies need no messages.
    """
    found: dict[tuple[int, ...], list[SharedParameter]] = {}
    for one in shared:
        stages = tuple(sorted({stage_of[operator] for operator in one.operators}))
        if len(stages) > 1 and one.trained:
            found.setdefault(stages, []).append(one)
    return {stages: tuple(found[stages]) for stages in sorted(found)}


def neighbours(count: int, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
    """Return for each of ``count`` operators what it is paired with, sorted."""
    found: list[set[int]] = [set() for _ in range(count)]
    for node, neighbour in pairs:
        found[node].add(neighbour)
    return tuple(tuple(sorted(paired)) for paired in found)


class OpGraph(Document):
    """A model as a DAG. Operators are numbered 0, 1, … in a topological order.

    ``outputs`` are the tensors that the model returns, as pairs (operator, index of its output),
    ``shared_parameters`` the weights that tie operators, such as an embedding that is the output
    layer too.
    """

    kind: ClassVar[str] = "graph"

    model: str
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]
    outputs: tuple[tuple[Count, Count], ...]
    shared_parameters: tuple[SharedParameter, ...] = ()

    @model_validator(mode="after")
    def _is_topologically_numbered(self) -> OpGraph:
        count, edges = len(self), self.edges
        made = {(op.id, output) for op in self.operators for output in range(len(op.outputs))}
        read = {(edge.source, output) for edge in edges for output in edge.outputs}
        sharing = [reader for shared in self.shared_parameters for reader in shared.operators]
        if (
            [op.id for op in self.operators] != [*range(max(count, 1))]
            or not all(edge.source < edge.target < count for edge in edges)
            or not made >= read.union(self.outputs)
            or max(sharing, default=0) >= count
            or len({op.name for op in self.operators}) < count
        ):
            raise ValueError(
                "operators, edges, outputs and shared parameters do not fit together: expected "
                "operators 0, 1, … with a name each, which read outputs of earlier ones alone, so "
                "that there is no cycle"
            )
        return self

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For every operator the operators it reads from."""
        return neighbours(len(self), ((edge.target, edge.source) for edge in self.edges))

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For every operator the operators that read from it."""
        return neighbours(len(self), ((edge.source, edge.target) for edge in self.edges))

    @cached_property
    def fingerprint(self) -> str:
        """A hash of what a placement relies on: operators, types and sizes, edges, shared weights.

        Operators' outputs do not count, since they depend on the batch size.
        """
        content = [
            *(f"{op.name} {op.type} {op.parameter_bytes}" for op in self.operators),
            *(f"{edge.source} {edge.target} {edge.outputs}" for edge in self.edges),
            *(f"{one.name} {one.bytes_} {one.operators}" for one in self.shared_parameters),
        ]
        return hashlib.sha256("\n".join(content).encode()).hexdigest()[:16]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of all parameters, each counted once."""
        return self.held_parameter_bytes(range(len(self)))

    def held_parameter_bytes(self, operators: Iterable[int]) -> int:
        """Return the bytes of the parameters of some operators, as a stage holds them: once."""
        held = {*operators}
        again = sum(
            shared.bytes_ * max(len(held.intersection(shared.operators)) - 1, 0)
            for shared in self.shared_parameters
        )
        return sum(self.operators[op].parameter_bytes for op in held) - again

    def cut_widths(self) -> list[int]:
        """Return the bytes that pass behind every operator but the last, each tensor once."""
        last_read: dict[tuple[int, int], int] = {}
        for edge in self.edges:
            for output in edge.outputs:
                key = edge.source, output
                last_read[key] = max(last_read.get(key, 0), edge.target)
        changes = [0] * len(self)
        for (source, output), target in last_read.items():
            size = self.operators[source].outputs[output].bytes_
            changes[source] += size
            changes[target] -= size
        return list(accumulate(changes[:-1]))


def common_module(modules: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of the name of the module that all of some are in; none for the model."""
    names = [module.split(".") if module else [] for module in modules]
    together = takewhile(lambda parts: len(set(parts)) == 1, zip(*names, strict=False))
    return tuple(parts[0] for parts in together)


def listed_module(name: str) -> str | None:
    """Return the outermost module of a list that an operator or a parameter of this name is in.

    That is ``layers.3`` for ``layers.3.attention.linear``.
    """
    found = _LISTED.match(name)
    return found and found[0]
