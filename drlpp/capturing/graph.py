"""The operator graph: what a model computes, as a DAG of operators whose edges carry tensors."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from itertools import accumulate, takewhile
from typing import Any, ClassVar

from pydantic import model_validator

from drlpp.io.documents import Document, Record
from drlpp.io.quantities import Count


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
        if not self.operators:
            raise ValueError("a graph needs at least one operator")
        for position, operator in enumerate(self.operators):
            if operator.id != position:
                raise ValueError(
                    f"operator {operator.name!r} has id {operator.id}, expected {position}: "
                    "operators are listed in the order of their ids"
                )
        names = [operator.name for operator in self.operators]
        if len(set(names)) < len(names):
            twice, _ = Counter(names).most_common(1)[0]
            raise ValueError(f"two operators are named {twice!r}; names are to be unique")
        for edge in self.edges:
            if not edge.source < edge.target < len(self):
                raise ValueError(
                    f"edge {edge.source} -> {edge.target}: expected "
                    f"0 <= source < target < {len(self)}, so that there is no cycle"
                )
            available = len(self.operators[edge.source].outputs)
            if any(index >= available for index in edge.outputs):
                raise ValueError(
                    f"edge {edge.source} -> {edge.target} reads outputs {edge.outputs}, but "
                    f"operator {edge.source} has {available}"
                )
        for number, output in self.outputs:
            if number >= len(self) or output >= len(self.operators[number].outputs):
                raise ValueError(
                    f"the model returns output {output} of operator {number}, which does not exist"
                )
        for shared in self.shared_parameters:
            readers = shared.operators
            if len(readers) < 2 or sorted({*readers}) != [*readers] or readers[-1] >= len(self):
                raise ValueError(
                    f"parameter {shared.name!r} is shared by operators {list(readers)}; expected "
                    f"at least two of 0 to {len(self) - 1}, sorted"
                )
        shares: Counter[int] = Counter()
        for shared in self.shared_parameters:
            shares.update(dict.fromkeys(shared.operators, shared.bytes_))
        for reader, bytes_ in shares.items():
            operator = self.operators[reader]
            if operator.parameter_bytes < bytes_:
                raise ValueError(
                    f"operator {operator.name!r} has {operator.parameter_bytes} bytes of "
                    f"parameters, fewer than the {bytes_} that it shares with others"
                )
        return self

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For every operator the operators it reads from."""
        return self._neighbours((edge.target, edge.source) for edge in self.edges)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For every operator the operators that read from it."""
        return self._neighbours((edge.source, edge.target) for edge in self.edges)

    def _neighbours(self, pairs: Iterable[tuple[int, int]]) -> tuple[tuple[int, ...], ...]:
        found: list[set[int]] = [set() for _ in self.operators]
        for node, neighbour in pairs:
            found[node].add(neighbour)
        return tuple(tuple(sorted(neighbours)) for neighbours in found)

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
