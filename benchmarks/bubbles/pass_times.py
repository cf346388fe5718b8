"""What passes took in a run, and the bubbles that follow: by formulas, and simulated."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field, replace

import numpy

from drlpp.capturing.graph import OpGraph
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.costs.workload import Workload
from drlpp.placement.candidate import Candidate
from drlpp.schedule.actions import Backward, BackwardInput, BackwardWeight, Forward, Pass
from drlpp.simulator import simulate
from drlpp.specs.cluster import Link, local_cluster

_NO_TIME = Link(bandwidth_bytes_per_second=1e15)
"""That a message takes on it."""


@dataclass(frozen=True)
class PassTimes:
    """The seconds of every stage's passes in a run, by kind, and of every worker's updates."""

    passes: dict[tuple[int, type[Pass]], list[float]] = field(
        default_factory=lambda: defaultdict(list)
    )
    updates: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))

    def bubble(self, stages: int) -> float:
        """(P − 1)(F + B), and (P − 1)(F + I − W) where backwards are split."""
        found = self._medians()
        if BackwardInput in found:
            backward = found[BackwardInput] - found[BackwardWeight]
        else:
            backward = found[Backward]
        return (stages - 1) * (found[Forward] + backward)

    def bubble_of_zb_v(self, workers: int, microbatches: int) -> float:
        """Return that of passes which are all as long as these are in the mean."""
        found = self._medians()
        mean = statistics.mean(found[kind] for kind in (Forward, BackwardInput, BackwardWeight))
        return idle_passes_of_zb_v(workers, microbatches) * mean

    def _medians(self) -> dict[type[Pass], float]:
        together: dict[type[Pass], list[float]] = defaultdict(list)
        for (_, kind), seconds in self.passes.items():
            together[kind] += seconds
        return {kind: statistics.median(seconds) for kind, seconds in together.items()}

    def simulated_seconds(self, graph: OpGraph, candidate: Candidate) -> float:
        """Return an update's seconds in the simulator, where passes take their mean in the run.

        Messages take no time. Halves of a backward are in the same ratio on all stages, as in a
        profile.
        """
        placement, method = candidate.placement, candidate.method
        costs = [OperatorProfile(forward_seconds=0, backward_seconds=0)] * len(graph)
        updates = numpy.zeros(len(graph))
        for number, stage in enumerate(placement.stages):
            weighted = [op for op in stage.operators if graph.operators[op].parameter_bytes]
            share = method.microbatches / len(weighted)
            seconds = OperatorProfile(
                forward_seconds=share * self._mean(number, Forward),
                backward_seconds=share * sum(self._mean(number, kind) for kind in _BACKWARDS),
            )
            for operator in weighted:
                costs[operator] = seconds
            (worker,) = stage.accelerators
            held = sum(other.accelerators == stage.accelerators for other in placement.stages)
            updates[weighted] = statistics.mean(self.updates[worker]) / held / len(weighted)
        profile = Profile(
            graph=graph,
            device="timed in a run",
            batch_size=method.microbatches,
            operators=tuple(costs),
            weight_share=self._weight_share(len(placement.stages)),
        )
        workload = replace(Workload.of(profile, method), update_seconds=updates)
        cluster = local_cluster(1 + max(placement.accelerators), _NO_TIME)
        return simulate(workload, cluster, placement, method).seconds_per_minibatch

    def _weight_share(self, stages: int) -> float:
        """Return the part of backwards in halves that gradients of weights take."""
        of_inputs, of_weights = (
            sum(self._mean(stage, kind) for stage in range(stages))
            for kind in (BackwardInput, BackwardWeight)
        )
        return of_weights / (of_inputs + of_weights) if of_weights else 0.5

    def _mean(self, stage: int, kind: type[Pass]) -> float:
        found = self.passes.get((stage, kind))
        return statistics.mean(found) if found else 0.0


_BACKWARDS: tuple[type[Pass], ...] = (Backward, BackwardInput, BackwardWeight)


def idle_passes_of_zb_v(workers: int, microbatches: int) -> int:
    """Return for how many passes of a stage a worker of ZB-V waits between two updates.

    That is what its schedule gives if forwards and halves of backwards are equally long: 2P − 1
    microbatches fill the pipeline, and of each that is missing two passes are.
    """
    return 2 * max(2 * workers - 1 - microbatches, 0)
