"""What replicas wait for the sums of their gradients, bucket by bucket: a bound above the rule's.

By the rule an all-reduce hides behind the whole backward before it
(:mod:`drlpp.costs.stage_cost`). In fact its first bucket is only ready when a part of that is done,
and each waits for the one before; what comes last has nothing left to hide behind. So where
replicas hold many weights the rule is too low, and a search that goes by it ends where many wait.
"""

from __future__ import annotations

from drlpp.costs.analytic_model import group_of
from drlpp.costs.stage_cost import StageSeconds
from drlpp.placement.placement import Placement, Stage
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.simulator.work import buckets_of


class SumsLeft:
    """Seconds per minibatch that no replicated stage of a placement can do with fewer.

    Args:
        problem: whose rule overlaps what can be. Where operators share weights it says nothing.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        self._problem = problem
        self._known: dict[Stage, float] = {}
        self._applies = problem.costs == "overlapped" and not problem.workload.ties

    def __call__(self, placement: Placement) -> float:
        """Return a lower bound; 0 where no stage is replicated."""
        if not self._applies:
            return 0.0
        return max(
            (self._of(stage) for stage in placement.stages if len(stage.accelerators) > 1),
            default=0.0,
        )

    def _of(self, stage: Stage) -> float:
        found = self._known.get(stage)
        if found is None:
            found = self._known[stage] = self._computed(stage)
        return found

    def _computed(self, stage: Stage) -> float:
        workload, cluster = self._problem.workload, self._problem.cluster
        group = group_of(cluster, stage.accelerators, ())
        replicas, ring = group.replicas, group.ring
        work = workload.stage(stage.operators, last=len(workload) - 1 in stage.operators)
        backward = workload.backward_seconds[list(stage.operators)].sum()
        backward /= workload.microbatches * group.speed
        end = 0.0
        for bucket in buckets_of(workload, stage.operators):
            each = bucket.bytes_ / (replicas * ring.bandwidth_bytes_per_second)
            takes = 2 * (replicas - 1) * (each + ring.latency_seconds)
            end = max(end, bucket.ready * backward) + takes
        left = max(0.0, end - float(work.one_backward_seconds) / group.speed)
        updates = float(work.updates_in_a_round(replicas))
        busy = float(StageSeconds.busy(work, replicas)) / group.speed
        return busy + updates * left / replicas
