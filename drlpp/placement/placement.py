"""A placement: the stages of a model, and for every accelerator the stage that it holds, or two."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from drlpp.capturing.graph import OpGraph, SharedParameter, copies_of
from drlpp.errors import InvalidPlacement
from drlpp.io.documents import Record
from drlpp.io.quantities import Count
from drlpp.schedule.pipeline import Pipeline, are_folded


class Stage(Record):
    """Operators (ids) that run together, and the accelerators (numbers) that hold them."""

    operators: tuple[Count, ...]
    accelerators: tuple[Count, ...]


class Placement(Record):
    """Stages in the order of the pipeline.

    Every edge of the graph leads from a stage to itself or to a later one, so the graph of
    stages is acyclic; stages may form branches as well as a chain. An accelerator holds one stage,
    or all hold two of a folded pipeline: the first and the last stage, the second and the last but
    one, and so on.
    """

    stages: tuple[Stage, ...]

    @classmethod
    def of(
        cls, operators: Iterable[Iterable[int]], accelerators: Iterable[Iterable[int]]
    ) -> Placement:
        """Build a placement from the operators of every stage, and what holds them."""
        held = zip(map(tuple, operators), map(tuple, accelerators), strict=True)
        return cls(stages=tuple(Stage(operators=ops, accelerators=a) for ops, a in held))

    @classmethod
    def from_assignment(
        cls, stage_of_operator: Sequence[int], stage_of_accelerator: Sequence[int]
    ) -> Placement:
        """Build a placement from the stage of every operator and of every accelerator.

        Stages may be numbered with gaps; they are renumbered in their order. An accelerator whose
        stage no operator has is idle.
        """
        used = sorted(set(stage_of_operator))
        operators, accelerators = (
            [[i for i, k in enumerate(stage_of) if k == stage] for stage in used]
            for stage_of in (stage_of_operator, stage_of_accelerator)
        )
        return cls.of(operators, accelerators)

    @classmethod
    def straight(cls, sizes: Sequence[float], accelerators: Sequence[int]) -> Placement:
        """Cut operators into consecutive runs of about the same size, each with one or more.

        Args:
            sizes: of the operators, such as their seconds.
            accelerators: of the runs; no more than there are operators.
        """
        stages, sums = len(accelerators), list(accumulate(sizes))
        ends = [0]
        for number in range(1, stages):
            share = sums[-1] * number / stages
            operator = bisect_left(sums, share)
            if operator and share - sums[operator - 1] <= sums[operator] - share:
                operator = bisect_left(sums, sums[operator - 1])
            ends.append(min(max(operator + 1, ends[-1] + 1), len(sums) - stages + number))
        ends.append(len(sums))
        return cls.of((range(*run) for run in pairwise(ends)), ([one] for one in accelerators))

    @property
    def configuration(self) -> str:
        """Replicas per stage as PipeDream writes them, like ``2-1-1``."""
        return "-".join(str(len(held)) for held in self.holders)

    @property
    def canonical(self) -> Placement:
        """The same placement with the operators of every stage sorted."""
        return self.of((sorted(stage.operators) for stage in self.stages), self.holders)

    @property
    def holders(self) -> tuple[tuple[int, ...], ...]:
        """The accelerators of every stage."""
        return tuple(stage.accelerators for stage in self.stages)

    @property
    def accelerators(self) -> tuple[int, ...]:
        """All accelerators that hold a stage, sorted."""
        return tuple(sorted({a for held in self.holders for a in held}))

    @property
    def is_folded(self) -> bool:
        """Whether every accelerator holds two stages, there and back, without replicas."""
        return are_folded(self.holders)

    def stage_of_operator(self, operators: int) -> tuple[int, ...]:
        """Return the stage of each of ``operators`` operators."""
        stage_of = [-1] * operators
        for index, stage in enumerate(self.stages):
            for operator in stage.operators:
                stage_of[operator] = index
        return tuple(stage_of)

    def stages_of(self, accelerator: int) -> tuple[int, ...]:
        """Return the stages that an accelerator holds: none, one, or two."""
        return tuple(k for k, held in enumerate(self.holders) if accelerator in held)

    def on(self, accelerators: Sequence[int]) -> Placement:
        """Return the same on other accelerators: on ``accelerators[0]`` instead of 0, and so on."""
        held = ([accelerators[a] for a in before] for before in self.holders)
        return self.of((stage.operators for stage in self.stages), held)

    def validate_for(self, graph: OpGraph, accelerators: int) -> None:
        """Check that this placement can run ``graph`` on accelerators 0 … ``accelerators`` − 1.

        Raises:
            InvalidPlacement: what is wrong, where, and what would be right.
        """
        if not self.stages:
            raise InvalidPlacement("the placement has no stages; at least one is needed")
        for index, stage in enumerate(self.stages):
            if not stage.operators:
                raise InvalidPlacement(
                    f"stage {index} has no operators; leave it out or give it some"
                )
        self._check_accelerators(accelerators)
        self._check_operators(graph)
        stage_of = self.stage_of_operator(len(graph))
        for edge in graph.edges:
            if stage_of[edge.source] > stage_of[edge.target]:
                source, target = graph.operators[edge.source], graph.operators[edge.target]
                raise InvalidPlacement(
                    f"operator {edge.target} ({target.name}) in stage {stage_of[edge.target]} "
                    f"reads operator {edge.source} ({source.name}) in the later stage "
                    f"{stage_of[edge.source]}: stages must form no cycle, so an operator has to "
                    "stand in the same stage as what it reads, or in a later one"
                )

    def _check_accelerators(self, available: int) -> None:
        holder: dict[int, int] = {}
        for index, stage in enumerate(self.stages):
            if not stage.accelerators:
                raise InvalidPlacement(
                    f"stage {index} has no accelerator; every stage needs at least one"
                )
            for accelerator in stage.accelerators:
                if not 0 <= accelerator < available:
                    raise InvalidPlacement(
                        f"stage {index} names accelerator {accelerator}, but there are only "
                        f"0 to {available - 1}"
                    )
                if accelerator in holder and not self.is_folded:
                    raise InvalidPlacement(
                        f"accelerator {accelerator} is used twice, by stage {holder[accelerator]} "
                        f"and stage {index}; an accelerator holds one stage"
                    )
                holder[accelerator] = index

    def _check_operators(self, graph: OpGraph) -> None:
        holder: dict[int, int] = {}
        for index, stage in enumerate(self.stages):
            for operator in stage.operators:
                if not 0 <= operator < len(graph):
                    raise InvalidPlacement(
                        f"stage {index} names operator {operator}, but the graph of "
                        f"{graph.model} has only 0 to {len(graph) - 1}"
                    )
                if operator in holder:
                    raise InvalidPlacement(
                        f"operator {operator} ({graph.operators[operator].name}) is in stage "
                        f"{holder[operator]} and in stage {index}; it must be in one"
                    )
                holder[operator] = index
        missing = [op for op in graph.operators if op.id not in holder]
        if missing:
            raise InvalidPlacement(
                f"operator {missing[0].id} ({missing[0].name}) is in no stage"
                + (f", nor are {len(missing) - 1} others" if len(missing) > 1 else "")
            )

    def ties(self, graph: OpGraph) -> dict[tuple[int, ...], tuple[SharedParameter, ...]]:
        """Return the trained parameters that several stages hold a copy of, by these stages."""
        return copies_of(graph.shared_parameters, self.stage_of_operator(len(graph)))

    def pipeline(self, graph: OpGraph) -> Pipeline:
        """Return the shape of this placement, which is all that a schedule depends on."""
        stage_of = self.stage_of_operator(len(graph))
        last = len(self.stages) - 1
        # The loss is computed on the last stage, so every output of the model goes there.
        crossing = [
            (stage_of[edge.source], stage_of[edge.target], edge.source, output)
            for edge in graph.edges
            for output in edge.outputs
        ] + [(stage_of[operator], last, operator, output) for operator, output in graph.outputs]
        return Pipeline.connecting(
            self.holders,
            (
                (source, target, graph.operators[operator].outputs[output].differentiable)
                for source, target, operator, output in crossing
            ),
            self.ties(graph),
        )
