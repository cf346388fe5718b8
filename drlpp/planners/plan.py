"""``drlpp.plan``: from a model, or from costs alone, to a plan that can be trained."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from drlpp.costs.cost_table import profile_of_table, read_profile
from drlpp.costs.memory import MemoryModel
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidCluster, InvalidInput, ModelNote, NothingFits
from drlpp.io.documents import first_problem
from drlpp.io.formatting import seconds_text
from drlpp.placement.plan import Plan
from drlpp.planners.map import ways_of_training
from drlpp.planners.planning import SEARCH, best_plan, check_planner
from drlpp.planners.problem import PlanningProblem, objective_for
from drlpp.planners.search import Space, Vary, usually_varied
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.specs.cluster import Cluster, Link, local_cluster, read_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

if TYPE_CHECKING:
    from drlpp.capturing.capture import CapturedModel
    from drlpp.models.model_reference import Model

Costs = Profile | str | Path | Sequence[Mapping[str, Any]]
"""A profile, a file of one, or the rows of a table."""

_ADAM_STATE = 2.0
"""Elements of Adam's state for each weight."""


def plan(
    model: Model | CapturedModel | None = None,
    workers: int | None = None,
    *,
    profile: Costs | None = None,
    cluster: Cluster | str | Path | None = None,
    bandwidth: float | None = None,
    latency: float = 0.0,
    speeds: Sequence[float] | None = None,
    memory: float | None = None,
    method: Method = DEFAULT_METHOD,
    optimizer: OptimizerSpec | None = None,
    planner: str = SEARCH,
    objective: str | None = None,
    vary: frozenset[Vary] | None = None,
    most_staleness: int | None = None,
    replicate: bool = True,
    seed: int = 0,
) -> Plan:
    """Return the best plan of a model for some workers, by the simulator.

    ::

        plan = drlpp.plan(task, workers=4)
        result = PipelineTrainer(plan).fit(loader, epochs=5)

    Without a profile, worker processes of this machine measure what the model's operators cost,
    and what messages take unless the cluster or the bandwidth is given. Planning itself runs
    nothing, and from costs alone it needs neither torch nor a GPU::

        drlpp.plan(profile="costs.csv", workers=4, bandwidth=1e9)

    Args:
        model: a task, a name, a factory, or what :func:`drlpp.capture` returns.
        workers: how many; may be left out where ``cluster`` is given.
        profile: a :class:`~drlpp.costs.profile.Profile`; the path of a ``profile.json``, or of a
            table of costs as CSV; or the rows of such a table.
        cluster: the accelerators; the path of a ``cluster.yaml``; or a name such as
            ``a100-10gbit``.
        bandwidth: of the link between two of ``workers``, in bytes per second.
        latency: of that link, in seconds.
        speeds: of each worker, relative to the one that was profiled.
        memory: of each worker, in bytes; not limited by default.
        method: schedule and weight policy.
        optimizer: that memory is counted for; Adam by default.
        planner: ``search``, or a baseline alone: ``data-parallel``, ``gpipe`` or ``pipedream``.
        objective: what the search minimises for a minibatch: ``loss``, seconds times the samples
            that late weights need, which is the default; ``seconds``, as where every update is made
            of several minibatches; or ``dollars``, by the prices of the cluster's hosts: fewer
            accelerators may be cheaper.
        vary: what the search may choose with the placement; by default the in-flight depth, where
            the schedule has one, and to a ``loss`` microbatches, if ``method`` does not set them.
        most_staleness: the largest s of a stage that is allowed; None for any.
        replicate: whether a stage may have several workers.
        seed: of the search.

    Raises:
        InvalidInput: what is missing or wrong, and what would be right;
            :class:`~drlpp.errors.NothingFits` if no placement fits into memory.
    """
    if model is None and profile is None:
        raise InvalidInput("name what to plan: a model, or profile=… for costs alone")
    known = cluster_of(workers, cluster, bandwidth, latency, speeds, memory)
    objective = objective_for(method, objective)
    check_planner(planner)
    problem, costs, captured = planning_problem(
        model, profile, known or workers, method, optimizer, objective, seed
    )
    problem = replace(problem, replicate=replicate)
    fixed = method.model_fields_set if vary is None else set(Vary)
    if vary is None:
        kinds = problem.workload.kinds
        vary = usually_varied(method, method.model_fields_set, objective, kinds)
    space = Space(method, vary, most_staleness, costs.batch_size)
    found = plan_or_way_out(problem, space, planner, fixed)
    return replace(
        found,
        ways=tuple(ways_of_training(problem, costs.batch_size).best()),
        graph=costs.graph,
        cluster=problem.cluster,
        optimizer=optimizer,
        model=captured,
    )


def plan_or_way_out(
    problem: PlanningProblem,
    space: Space,
    planner: str,
    fixed: Collection[str] = (),
) -> Plan:
    """Return the best plan; where a search finds none that fits, that of one for other methods.

    Args:
        problem, space, planner: as of :func:`~drlpp.planners.planning.best_plan`.
        fixed: options of the method that stay as they are.

    Raises:
        NothingFits: no such plan fits either; it names what would fit without a pipeline.
    """
    try:
        return best_plan(problem, space, planner)
    except NothingFits as error:
        less = {Vary.MICROBATCHES, Vary.RECOMPUTE}.difference(fixed)
        if planner == SEARCH and less:
            with suppress(InvalidInput):
                found = best_plan(problem, replace(space, vary=space.varying | less))
                warnings.warn(
                    f"planned with {found.method}; with {space.method}, {error}",
                    ModelNote,
                    stacklevel=3,
                )
                return found
        ways = ways_of_training(problem, space.batch_size or 1).best()
        fits = [way for way in ways if way.fits]
        if not fits:
            raise
        best = min(fits, key=lambda way: way.seconds_per_minibatch)
        raise NothingFits(
            f"{error}. Without a pipeline {best.way.torch} fits (accelerators: "
            f"{len(best.accelerators)}, passes of a minibatch: {best.passes}), at a predicted "
            f"{seconds_text(best.seconds_per_minibatch)} a minibatch"
        ) from error


def planning_problem(
    model: Model | CapturedModel | None,
    profile: Costs | None,
    workers: Cluster | int | None,
    method: Method,
    optimizer: OptimizerSpec | None,
    objective: str,
    seed: int,
) -> tuple[PlanningProblem, Profile, CapturedModel | None]:
    """Return what :func:`plan` plans for such arguments, its costs and its model.

    ``workers`` are a cluster, or as many on this machine, whose links are measured.

    Raises:
        InvalidInput: what is missing or wrong, and what would be right.
    """
    known = workers if isinstance(workers, Cluster) else None
    costs = None if profile is None else _profile(profile)
    captured = None if model is None else _captured(model)
    if costs is None:
        assert captured is not None
        costs, measured = _measured(captured, workers, method)
        known = known or measured
    elif captured is not None:
        costs.check_is_of(str(captured.reference), captured.graph.fingerprint)
    if known is not None and known.hosts[0].flops_per_second is not None:
        if captured is None:
            raise InvalidInput(
                "hosts of this cluster say flops_per_second, and a minibatch's FLOPs are known of "
                "a model alone: name the model, too, or give speeds"
            )
        from drlpp.capturing.flops import flops_of

        known = known.for_model(flops_of(captured), sum(costs.seconds))
    if known is None:
        raise InvalidInput(
            "what messages take is not known: give bandwidth=… (--bandwidth) in bytes per second, "
            "or cluster=… (--cluster)"
        )
    problem = PlanningProblem(
        Workload.of(costs, method),
        known,
        # Without torch an optimizer cannot be asked for its state.
        memory=MemoryModel(method, _ADAM_STATE)
        if optimizer is None
        else MemoryModel.of(method, optimizer),
        seed=seed,
        objective=objective,
        optimizer=optimizer,
    )
    return problem, costs, captured


def cluster_of(
    workers: int | None,
    given: Cluster | str | Path | None,
    bandwidth: float | None,
    latency: float = 0.0,
    speeds: Sequence[float] | None = None,
    memory: float | None = None,
) -> Cluster | None:
    """Return the accelerators by the arguments of :func:`plan`; None if links are measured.

    Raises:
        InvalidInput: what is missing or wrong, and what would be right.
    """
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int)):
        raise InvalidInput(
            f"workers is a {type(workers).__name__}; expected a number such as 4, and a cluster as "
            "cluster=…"
        )
    if given is not None:
        if bandwidth is not None or latency or memory is not None:
            raise InvalidCluster(
                "a cluster says what its links and memory are; leave out bandwidth, latency and "
                "memory"
            )
        if isinstance(given, str | Path):
            given = read_cluster(given)
        if workers not in (None, given.accelerators):
            raise InvalidCluster(
                f"the cluster has {given.accelerators} accelerators; leave out workers={workers}"
            )
        return given if speeds is None else given.with_speeds(speeds)
    if workers is None:
        raise InvalidCluster(
            "how many workers are there? Give workers=4 (--workers 4) or cluster=… (--cluster)"
        )
    if bandwidth is None:
        return None
    try:
        link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=latency)
    except ValidationError as error:
        raise InvalidCluster(first_problem(error)) from None
    return local_cluster(workers, link, speeds, memory)


def _profile(given: Costs) -> Profile:
    if isinstance(given, Profile):
        return given
    if isinstance(given, str | Path):
        return read_profile(Path(given))
    if isinstance(given, Sequence):
        return profile_of_table(cast(Sequence[Mapping[str, Any]], given))
    raise InvalidInput(
        f"profile is a {type(given).__name__}; expected a Profile, a path, or rows of costs"
    )


def _measured(
    captured: CapturedModel, workers: Cluster | int | None, method: Method
) -> tuple[Profile, Cluster]:
    """Measure operators on workers of this machine, and links if they are not known."""
    from drlpp.runtime.session.session import ClusterSession

    count = 1 if isinstance(workers, Cluster) else workers
    with ClusterSession(captured, workers=count, method=method) as session:
        return session.profile()


def _captured(model: Model | CapturedModel) -> CapturedModel:
    from drlpp.capturing.capture import CapturedModel, capture

    return model if isinstance(model, CapturedModel) else capture(model)
