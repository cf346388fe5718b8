"""A profile: what every operator costs on a device, measured once at a named batch size."""

from __future__ import annotations

from typing import ClassVar

from drlpp.files import Document, Record


class OperatorProfile(Record):
    """Median seconds of an operator's forward and backward pass for one minibatch."""

    forward_seconds: float
    backward_seconds: float


class Profile(Document):
    """Costs of the operators of the graph with ``graph_fingerprint``, by operator id.

    ``update_seconds_per_byte`` is what the optimizer takes for a byte of parameters.
    """

    kind: ClassVar[str] = "profile"

    model: str
    graph_fingerprint: str
    device: str
    batch_size: int
    operators: tuple[OperatorProfile, ...]
    update_seconds_per_byte: float = 0.0

    @property
    def seconds(self) -> tuple[float, ...]:
        """Forward plus backward seconds of every operator."""
        return tuple(op.forward_seconds + op.backward_seconds for op in self.operators)
