"""A profile: what every operator costs on a device, measured once at a named batch size."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import ClassVar

from pydantic import Field, model_validator

from drlpp.capturing.graph import OpGraph
from drlpp.errors import InvalidInput
from drlpp.io.documents import Document, Record
from drlpp.io.quantities import Count, Seconds, SecondsPerByte


class OperatorProfile(Record):
    """What an operator costs for one minibatch.

    Attributes:
        forward_seconds, backward_seconds: median of the repetitions.
        forward_spread_seconds, backward_spread_seconds: half of the range that the middle half of
            the repetitions lie in; 0 where it is not known.
        kept_bytes: what the forward pass keeps for the backward pass, weights apart.
        working_bytes: what it needs while it computes; left out, it follows from the graph
            (:mod:`drlpp.costs.memory`).
    """

    forward_seconds: Seconds
    backward_seconds: Seconds
    forward_spread_seconds: Seconds = 0.0
    backward_spread_seconds: Seconds = 0.0
    kept_bytes: Count = 0
    working_bytes: Count | None = None


class RunFactors(Record):
    """How much longer things took in short runs than the operators' costs say.

    Attributes:
        passes: what workers compute, updates included.
        seconds: the whole: what is left where the busiest worker waits, too.
        spread: of a prediction, as the standard deviation of its logarithm.
    """

    passes: float = Field(default=1.0, ge=1, le=1e3)
    seconds: float = Field(default=1.0, ge=1, le=1e3)
    spread: float = Field(default=0.0, ge=0, le=1e3)


NO_FACTORS = RunFactors()
_BYTES = ("kept_bytes", "working_bytes")


class Profile(Document):
    """The operators of a model and their costs.

    Attributes:
        graph: the operators, with the sizes of their parameters and outputs.
        device: that it was measured on.
        batch_size: samples in a minibatch.
        operators: costs, by operator id.
        timed_operators: how many were timed, the others being equal to one of them
            (:mod:`drlpp.capturing.blocks`); None where each was.
        forward_overhead_seconds, backward_overhead_seconds: of a stage's pass, whatever operators
            it has.
        fixed_share: the part of an operator's seconds that a microbatch takes as well, however few
            samples it has: it takes t·(f + (1 − f)/M) of t.
        split_seconds: what the halves of a backward take beyond the whole one, in addition to
            another ``backward_overhead_seconds``, for every operator with weights.
        weight_share: the part of the backward of operators with weights that its half for weights
            takes.
        update_overhead_seconds: of a stage's update, whatever parameters it has.
        update_seconds_per_byte: what the optimizer takes for a byte of parameters.
        prediction_seconds_per_byte: what predicting weights for a forward takes for a byte of
            parameters.
        sharing_seconds_per_byte: what collecting gradients to be summed over replicas takes for a
            byte of parameters, in addition to a minibatch's backward; the sum itself is the links'
            time.
        in_pipeline, replicated: of stages of a pipeline, and of replicas; None where no short run
            told (:mod:`drlpp.costs.short_runs`).
    """

    kind: ClassVar[str] = "profile"
    current_version: ClassVar[int] = 2

    graph: OpGraph
    device: str
    batch_size: Count
    operators: tuple[OperatorProfile, ...]
    timed_operators: Count | None = None
    forward_overhead_seconds: Seconds = 0.0
    backward_overhead_seconds: Seconds = 0.0
    fixed_share: float = Field(default=0.0, ge=0, le=1)
    split_seconds: Seconds = 0.0
    weight_share: float = Field(default=0.5, ge=0, le=1)
    update_overhead_seconds: Seconds = 0.0
    update_seconds_per_byte: SecondsPerByte = 0.0
    prediction_seconds_per_byte: SecondsPerByte = 0.0
    sharing_seconds_per_byte: SecondsPerByte = 0.0
    in_pipeline: RunFactors | None = None
    replicated: RunFactors | None = None

    @model_validator(mode="after")
    def _covers_the_graph(self) -> Profile:
        if len(self.operators) != len(self.graph):
            raise ValueError(
                f"{len(self.operators)} operators have costs, but the graph of {self.graph.model} "
                f"has {len(self.graph)}"
            )
        return self

    def check_is_of(self, model: str, fingerprint: str) -> None:
        """Check that it is of a model whose graph has this fingerprint.

        Raises:
            InvalidInput: it is of another.
        """
        if self.graph.fingerprint != fingerprint:
            raise InvalidInput(
                f"the profile is of {self.graph.model} (graph {self.graph.fingerprint}), but this "
                f"is {model} (graph {fingerprint}); profile this model again"
            )

    def of_repeated_blocks(self, graph: OpGraph, alike: Sequence[Sequence[int]]) -> Profile:
        """Return the profile of a model that has more of the same blocks.

        Args:
            graph: of that model.
            alike: for each of its operators, those of this profile's graph that are equal. It costs
                what they do in the median.
        """
        operators = [[self.operators[op] for op in equal] for equal in alike]
        return Profile.model_validate(
            {
                **dict(self),
                "graph": graph,
                "operators": tuple(map(_in_the_middle, operators)),
                "timed_operators": len(self.operators),
            }
        )

    @classmethod
    def estimated(cls, graph: OpGraph, bytes_per_second: float = 2e10) -> Profile:
        """Return costs in proportion to the bytes that an operator reads and writes.

        Only ratios mean anything, and those not much: it is a start for planners whose placements
        are measured anyway.
        """
        read = [0] * len(graph)
        for edge in graph.edges:
            outputs = graph.operators[edge.source].outputs
            read[edge.target] += sum(outputs[index].bytes_ for index in edge.outputs)
        costs = []
        for op in graph.operators:
            seconds = (op.parameter_bytes + op.output_bytes + read[op.id]) / bytes_per_second
            costs.append(OperatorProfile(forward_seconds=seconds, backward_seconds=2 * seconds))
        return cls(graph=graph, device="estimated from sizes", batch_size=1, operators=tuple(costs))

    @property
    def seconds(self) -> tuple[float, ...]:
        """Forward plus backward seconds of every operator."""
        return tuple(op.forward_seconds + op.backward_seconds for op in self.operators)


def _in_the_middle(operators: Sequence[OperatorProfile]) -> OperatorProfile:
    """Return the median of every cost."""
    if len(operators) == 1:
        return operators[0]
    middle = {}
    for name in OperatorProfile.model_fields:
        values = [value for op in operators if (value := getattr(op, name)) is not None]
        if values:
            middle[name] = round(median(values)) if name in _BYTES else median(values)
    return OperatorProfile(**middle)
