"""What a learned placement has to beat: the planners' placements, each as it is meant to run."""

from __future__ import annotations

from drlpp.cluster import Cluster
from drlpp.memory import MemoryModel
from drlpp.planners import BASELINES, PLANNERS, PlanningProblem
from drlpp.profile import Profile
from drlpp.runtime.comparison import Contender
from drlpp.runtime.session import ClusterSession
from drlpp.training_options import choose_method
from drlpp.workload import Workload


def baseline_contenders(
    session: ClusterSession, profile: Profile, cluster: Cluster, microbatches: int
) -> list[Contender]:
    """The baselines for a comparison.

    Data parallelism and GPipe are methods as well as placements, and run synchronously; the other
    planners' placements run with the session's method.

    Args:
        session: with the method and the optimizer.
        profile, cluster: that the planners plan with.
        microbatches: of GPipe.
    """
    method = session.method
    methods = dict.fromkeys(BASELINES, method) | {
        "data-parallel": choose_method("sync", {"schedule": "1f1b"}, method),
        "gpipe": choose_method("sync", {"microbatches": microbatches}, method),
    }
    contenders = []
    for name in BASELINES:
        memory = MemoryModel.of(methods[name], session.optimizer)
        workload = Workload.of(profile, methods[name])
        problem = PlanningProblem(workload, cluster, memory=memory)
        placement = PLANNERS[name](problem).placement
        contenders.append(Contender(found_by=name, placement=placement, method=methods[name]))
    return contenders
