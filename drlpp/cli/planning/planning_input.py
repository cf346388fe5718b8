"""What to plan, as a user names it: a model or a profile, a cluster or numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from drlpp.costs.files.profile_files import read_profile
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidCluster, InvalidInput
from drlpp.io.documents import first_problem, read_document, read_mapping
from drlpp.models.model_reference import ModelReference
from drlpp.planners.milp.partitioning_instance import PartitioningInstance
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Link, local_cluster


@dataclass(frozen=True)
class PlanningInput:
    """A problem, and where it comes from.

    Attributes:
        problem: what to plan.
        reference: the model, if one was named.
        profile: its costs, unless the problem is an instance of dnn-partitioning.
    """

    problem: PlanningProblem
    reference: ModelReference | None = None
    profile: Profile | None = None

    @classmethod
    def read(
        cls,
        *,
        model: ModelReference | None,
        profile: Path | None,
        cluster: Path | None,
        accelerators: int | None,
        bandwidth: float | None,
        latency: float | None,
        memory: float | None,
        speeds: str | None,
        method: Method,
    ) -> PlanningInput:
        """Read files and numbers; a model that comes without a profile is profiled here.

        Raises:
            InvalidInput: if something is missing, contradicts itself, or cannot be read.
        """
        if profile is None and model is None:
            raise InvalidInput("name what to plan: a MODEL, or --profile FILE")
        _check_numbers(bandwidth=bandwidth, latency=latency or None, memory=memory)
        if profile is not None and _is_partitioning_instance(profile):
            if cluster is not None or latency is not None:
                raise InvalidInput(
                    f"{profile}: an instance of dnn-partitioning has its own links; leave out "
                    "--cluster and --latency, and name another number of devices by --accelerators"
                )
            return cls._of_instance(profile, accelerators, memory, speeds)
        relative = None if speeds is None else read_speeds(speeds)
        found = read_cluster(cluster, accelerators, bandwidth, latency, relative, memory)
        costs = _profile_here(model, method) if profile is None else read_profile(profile)
        if model is not None and profile is not None:
            _check_same_model(model, costs)
        return cls(PlanningProblem(Workload.of(costs, method), found), model, costs)

    @classmethod
    def _of_instance(
        cls, path: Path, accelerators: int | None, memory: float | None, speeds: str | None
    ) -> PlanningInput:
        """Read an instance, which has its own links and limits.

        Speeds and memory that are given as well replace its own.
        """
        problem = PartitioningInstance.read(path).problem(accelerators)
        cluster = problem.cluster
        if memory is not None or speeds is not None:
            cluster = local_cluster(
                cluster.accelerators,
                cluster.within_host,
                None if speeds is None else read_speeds(speeds),
                cluster.memory_bytes[0] if memory is None else memory,
            )
        return cls(replace(problem, cluster=cluster))


def read_speeds(text: str) -> tuple[float, ...]:
    """Return relative speeds, separated by commas in ``text``.

    Raises:
        InvalidCluster: for anything else.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidCluster(
            f"speeds {text!r}: expected numbers separated by commas, such as 1,1,0.5,0.5"
        ) from None


def _is_partitioning_instance(path: Path) -> bool:
    if path.suffix != ".json":
        return False
    content = read_mapping(path)
    return "kind" not in content and "nodes" in content


def _check_numbers(**values: float | None) -> None:
    for name, value in values.items():
        if value is not None and not 0 < value < math.inf:
            raise InvalidCluster(f"{name} is {value:g}; it must be a number above 0")


def read_cluster(
    path: Path | None,
    accelerators: int | None,
    bandwidth: float | None,
    latency: float | None,
    speeds: tuple[float, ...] | None,
    memory: float | None,
) -> Cluster:
    """Read a cluster.yaml, or make equal accelerators of one machine by numbers.

    Raises:
        InvalidInput: if something is missing, contradicts itself, or cannot be read.
    """
    _check_numbers(bandwidth=bandwidth, latency=latency or None, memory=memory)
    if path is not None:
        if any(value is not None for value in (accelerators, bandwidth, latency, memory)):
            raise InvalidInput(
                "a cluster.yaml says how many accelerators there are, their links and memory; "
                "leave out --accelerators, --bandwidth, --latency and --memory"
            )
        cluster = read_document(path, Cluster)
        return cluster if speeds is None else cluster.with_speeds(speeds)
    if accelerators is None or bandwidth is None:
        raise InvalidInput(
            "name the accelerators: --cluster cluster.yaml, or --accelerators and --bandwidth "
            "(bytes per second)"
        )
    try:
        link = Link(bandwidth_bytes_per_second=bandwidth, latency_seconds=latency or 0.0)
    except ValidationError as error:
        raise InvalidCluster(first_problem(error)) from None
    return local_cluster(accelerators, link, speeds, memory)


def _profile_here(model: ModelReference | None, method: Method) -> Profile:
    from drlpp.runtime import ClusterSession

    assert model is not None
    with ClusterSession(model, workers=1, method=method) as session:
        return session.profile()[0]


def _check_same_model(model: ModelReference, profile: Profile) -> None:
    from drlpp.capturing.capture import capture

    graph = capture(model, check=False).graph
    if graph.fingerprint != profile.graph.fingerprint:
        raise InvalidInput(
            f"the profile is of {profile.graph.model} (graph {profile.graph.fingerprint}), but "
            f"{model} has graph {graph.fingerprint}; profile this model again"
        )
