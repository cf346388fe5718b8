"""What an export costs against the original placement, by the simulator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from drlpp.capturing.graph import Edge, Operator, OpGraph
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.simulator.simulation import simulate
from drlpp.specs.cluster import Cluster

_MINIBATCHES = 30


@dataclass(frozen=True)
class ExportCost:
    """Seconds for a minibatch in steady state, of the original and of what is exported."""

    original_seconds: float
    exported_seconds: float

    @classmethod
    def of(
        cls, profile: Profile, cluster: Cluster, original: Candidate, exported: Candidate
    ) -> ExportCost:
        """Simulate both; messages of the exported one pass between neighbours only."""
        relayed, placement = with_relays(profile, exported.placement)
        return cls(
            _seconds(profile, cluster, original),
            _seconds(relayed, cluster, Candidate(placement, exported.method)),
        )

    @property
    def ratio(self) -> float:
        """How much longer a minibatch of the exported one takes."""
        return self.exported_seconds / self.original_seconds


def _seconds(profile: Profile, cluster: Cluster, candidate: Candidate) -> float:
    work = Workload.of(profile, candidate.method)
    played = simulate(work, cluster, candidate.placement, candidate.method, _MINIBATCHES)
    return played.seconds_per_minibatch


def with_relays(profile: Profile, placement: Placement) -> tuple[Profile, Placement]:
    """Return the same with operators that hand a tensor on to the next stage, at no cost.

    Afterwards every tensor goes to the next stage at most.
    """
    graph, last = profile.graph, len(placement.stages) - 1
    stage_of = placement.stage_of_operator(len(graph))
    reader: dict[tuple[int, int], int] = {}
    for source, output, until in _reads(graph, stage_of, last):
        reader[source, output] = max(until, reader.get((source, output), 0))
    operators: list[Operator] = []
    costs: list[OperatorProfile] = []
    number: dict[int, int] = {}
    relay: dict[tuple[int, int, int], int] = {}
    stages = []
    for k, stage in enumerate(placement.stages):
        first = len(operators)
        for (source, output), until in reader.items():
            if stage_of[source] < k < until:
                relay[source, output, k] = len(operators)
                operator = graph.operators[source]
                operators.append(
                    Operator(
                        id=len(operators),
                        name=f"{operator.name} output {output} through stage {k}",
                        type="relay",
                        module="",
                        parameter_bytes=0,
                        outputs=(operator.outputs[output],),
                    )
                )
                costs.append(OperatorProfile(forward_seconds=0.0, backward_seconds=0.0))
        for id_ in sorted(stage.operators):
            number[id_] = len(operators)
            operators.append(graph.operators[id_].model_copy(update={"id": len(operators)}))
            costs.append(profile.operators[id_])
        stages.append(
            Stage(
                operators=tuple(range(first, len(operators))),
                accelerators=stage.accelerators,
            )
        )

    def giver(source: int, output: int, stage: int) -> tuple[int, int]:
        """Return operator and output that a stage reads a tensor from."""
        if stage_of[source] >= stage - 1:
            return number[source], output
        return relay[source, output, stage - 1], 0

    read: dict[tuple[int, int], list[int]] = {}
    for edge in graph.edges:
        for output in edge.outputs:
            origin, index = giver(edge.source, output, stage_of[edge.target])
            read.setdefault((origin, number[edge.target]), []).append(index)
    for (source, output, k), target in relay.items():
        origin, index = giver(source, output, k)
        read.setdefault((origin, target), []).append(index)
    rewritten = OpGraph(
        model=graph.model,
        operators=tuple(operators),
        edges=tuple(
            Edge(source=source, target=target, outputs=tuple(sorted(set(outputs))))
            for (source, target), outputs in sorted(read.items())
        ),
        outputs=tuple(giver(source, output, last) for source, output in graph.outputs),
        shared_parameters=tuple(
            shared.model_copy(
                update={"operators": tuple(sorted(number[op] for op in shared.operators))}
            )
            for shared in graph.shared_parameters
        ),
    )
    values = {name: getattr(profile, name) for name in Profile.model_fields}
    values |= {"graph": rewritten, "operators": tuple(costs)}
    return Profile(**values), Placement(stages=tuple(stages))


def _reads(graph: OpGraph, stage_of: tuple[int, ...], last: int) -> Iterator[tuple[int, int, int]]:
    """Yield (operator, output, stage that reads it); the loss is computed on the last stage."""
    for edge in graph.edges:
        for output in edge.outputs:
            yield edge.source, output, stage_of[edge.target]
    for source, output in graph.outputs:
        yield source, output, last
