"""What to plan, as a user names it: a model or a profile, a cluster or numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from drlpp.costs.cost_table import read_profile
from drlpp.costs.profile import Profile
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidCluster, InvalidInput
from drlpp.io.documents import first_problem, read_document
from drlpp.models.model_reference import ModelReference
from drlpp.planners.problem.problem import PlanningProblem
from drlpp.schedule.method import Method
from drlpp.specs.cluster import Cluster, Link, local_cluster


@dataclass(frozen=True)
class PlanningInput:
    """A problem, and where it comes from.

    Attributes:
        problem: what to plan.
        profile: what its operators cost.
        reference: the model, if one was named.
    """

    problem: PlanningProblem
    profile: Profile
    reference: ModelReference | None = None

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
        relative = None if speeds is None else read_speeds(speeds)
        costs = None if profile is None else read_profile(profile)
        found = read_cluster(cluster, accelerators, bandwidth, latency, relative, memory)
        if costs is None:
            costs = _profile_here(model, method)
        elif model is not None:
            _check_same_model(model, costs)
        return cls(PlanningProblem(Workload.of(costs, method), found), costs, model)


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
