"""Planning of plain data: somebody's own costs and a cluster in numbers, without torch."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from drlpp.costs.cost_table import profile_of_table, read_profile
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidCluster, InvalidInput, ModelNote
from drlpp.io.documents import document_of, first_problem, read_document
from drlpp.placement.candidate import Candidate
from drlpp.planners.best_simulated import (
    best_simulated,
    faster_unplanned,
    played,
    told_faster,
)
from drlpp.planners.plan import plan as plan_by
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.schedule.method_choice import choose_method
from drlpp.specs.cluster import Cluster, Link, local_cluster

Costs = Profile | str | Path | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A profile, a file of one, its content, or the rows of a table."""

BEST = "best"


def plan(
    costs: Costs,
    cluster: Cluster | str | Path | Mapping[str, Any] | int,
    *,
    bandwidth: float | None = None,
    latency: float = 0.0,
    speeds: Sequence[float] | None = None,
    memory: float | None = None,
    policy: str | None = None,
    options: Mapping[str, object] | None = None,
    planner: str = BEST,
    replicate: bool = True,
    optimizer_state: float = 2.0,
    seed: int = 0,
    time_limit: float = 60.0,
) -> Candidate:
    """Return the fastest placement of a model, by the simulator, and the method that runs it.

    Nothing runs, and neither torch nor a GPU is needed. It is what ``drlpp plan`` finds. ::

        rows = [{"name": "layer", "count": 12, "forward_ms": 2.1, "backward_ms": 4.3,
                 "output_bytes": 4_194_304, "parameter_bytes": 28_351_488}]
        found = drlpp.plan(rows, 4, bandwidth=1e9)
        [stage.operators for stage in found.placement.stages]

    Args:
        costs: rows of a table (:mod:`drlpp.costs.cost_table`), the content of a profile.json,
            the path of one or of a table as CSV, or a
            :class:`~drlpp.costs.profile.Profile`. Operators of the placement are numbered in the
            order of the rows.
        cluster: how many equal accelerators of one host there are; or a cluster.yaml, its content,
            or a :class:`~drlpp.specs.cluster.Cluster`.
        bandwidth: of the link between two accelerators, in bytes per second; for a number alone.
        latency: of that link, in seconds.
        speeds: of each accelerator, relative to the one that the costs are of.
        memory: of each accelerator, in bytes, for a number alone; not limited if left out.
        policy: weight policy (docs/methods.md); ``sync`` for a schedule that flushes.
        options: of the method, such as ``{"microbatches": 4}``. Without ``in_flight_per_link`` the
            fewest minibatches in flight are chosen that the simulator finds enough.
        planner: one of ``drlpp.PLANNERS``, or the best of what all quick ones propose. Warns
            (:class:`~drlpp.errors.ModelNote`) where data parallelism, or one accelerator alone, is
            faster than what that one finds.
        replicate: whether a stage may stand on several accelerators.
        optimizer_state: elements of the optimizer's state for each weight, for the memory: 2 with
            Adam, 1 with momentum, 0 with plain SGD.
        seed: of planners that draw at random.
        time_limit: seconds that the exact planner may search.

    Raises:
        InvalidInput: what is wrong in the costs, the cluster or the method, and what would be
            right; :class:`~drlpp.errors.NothingFits` if no placement fits into memory.
    """
    if isinstance(cluster, PlanningProblem):
        raise InvalidInput(
            "drlpp.plan takes costs and a cluster; a planner's name and a PlanningProblem are for "
            "drlpp.planners.plan"
        )
    profile = _profile(costs)
    found = _cluster(cluster, bandwidth, latency, speeds, memory)
    method = choose_method(policy, options, Method())
    problem = PlanningProblem(
        Workload.of(profile, method),
        found,
        replicate=replicate,
        memory=MemoryModel.with_state(method, optimizer_state),
        seed=seed,
        time_limit_seconds=time_limit,
    )
    deepen = "in_flight_per_link" not in (options or {})
    if planner == BEST:
        proposal = best_simulated(problem, method, deepen=deepen).best
    else:
        proposal = played(plan_by(planner, problem), method, deepen=deepen)
        if faster := faster_unplanned(proposal, method, deepen=deepen):
            told = told_faster(proposal, faster)
            note = f"{told}; leave out planner={planner!r} for the best of all planners"
            warnings.warn(note, ModelNote, stacklevel=2)
    if deepen:
        update = {"in_flight_per_link": proposal.depth.per_link}
        method = method.model_copy(update=update)
    return Candidate(proposal.plan.placement, method)


def _profile(costs: Costs) -> Profile:
    if isinstance(costs, Profile):
        return costs
    if isinstance(costs, str | Path):
        return read_profile(Path(costs))
    if isinstance(costs, Mapping):
        return document_of(costs, Profile, "costs")
    return profile_of_table(costs)


def _cluster(
    given: Cluster | str | Path | Mapping[str, Any] | int,
    bandwidth: float | None,
    latency: float,
    speeds: Sequence[float] | None,
    memory: float | None,
) -> Cluster:
    if isinstance(given, int):
        if bandwidth is None:
            raise InvalidCluster(
                f"{given} accelerators without a link between them; give bandwidth in bytes per "
                "second, such as bandwidth=1e9"
            )
        try:
            link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=latency)
        except ValidationError as error:
            raise InvalidCluster(first_problem(error)) from None
        return local_cluster(given, link, speeds, memory)
    if bandwidth is not None or latency or memory is not None:
        raise InvalidCluster(
            "a cluster says what its links and memory are; leave out bandwidth, latency and memory"
        )
    if isinstance(given, str | Path):
        given = read_document(given, Cluster)
    elif isinstance(given, Mapping):
        given = document_of(given, Cluster, "cluster")
    return given if speeds is None else given.with_speeds(speeds)
