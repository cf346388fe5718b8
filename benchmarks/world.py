"""Worlds: clusters known by name, whose ratio of links to computing emulated accelerators have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.profile import Profile
from drlpp.costs.ways_of_training import WaysOfTraining
from drlpp.models.model_reference import ModelReference
from drlpp.placement.plan import Plan
from drlpp.planners.map import ways_of_training
from drlpp.planners.plan import plan
from drlpp.planners.problem import PlanningProblem
from drlpp.runtime import ClusterSession
from drlpp.schedule.method import DEFAULT_METHOD, Method
from drlpp.specs.cluster import Cluster, Host, Link, read_cluster
from drlpp.specs.optimizer_spec import OptimizerSpec

_TEXT = {"batch_size": 8, "vocabulary": 256, "dropout": 0.0}
MODELS: dict[str, tuple[str, dict[str, int | float]]] = {
    "decoder": ("gpt2", _TEXT | {"hidden": 192}),
    "decoder-large": ("gpt2", _TEXT | {"hidden": 384}),
    "awd_lm": ("awd_lm", _TEXT | {"sequence_length": 32, "embedding": 192, "hidden": 512}),
    "alexnet": ("alexnet", {}),
}
WORLDS = (
    "a100-100gbit",
    "a100-25gbit",
    "a100-10gbit",
    "rtx4090-1gbit",
    "t4-cloud",
    "mixed-10gbit",
)
_SPEED = 0.4
"""Of the fastest emulated accelerators, in cores."""
_TOKENS = 8192
"""Of a minibatch on each of the real accelerators."""

_REAL_WEIGHTS = 1e9
"""Of the model there; only latencies depend on it."""

_ADAMW = OptimizerSpec.parse("adamw", lr=1e-3)


def real_ratio(world: Cluster) -> float:
    """Return R_w = F / (3·T·B) of a cluster, whose first accelerators are the fastest.

    Training computes 6 FLOPs for each weight and token, and a weight has two bytes: 2·W / B over
    6·W·T / F, with F FLOP/s, T tokens and B bytes per second between hosts, whatever W is.
    """
    assert world.between_hosts is not None
    flops = world.hosts[0].flops_per_second or 0.0
    return flops / (3 * _TOKENS * world.between_hosts.bandwidth_bytes_per_second)


def scaled_links(world: Cluster, weight_bytes: float, seconds: float) -> Cluster:
    """Return hosts of one accelerator each, whose links are to a model what the world's are.

    The bandwidth is bytes of the weights / (R_w · seconds of a minibatch of plain PyTorch on one
    accelerator), with R_w of :func:`real_ratio`. A latency is the same share of a minibatch as the
    world's is of one of 6·W·T / F seconds, W being a billion weights.
    """
    assert world.between_hosts is not None
    flops = world.hosts[0].flops_per_second or 0.0
    scale = seconds / (6 * _REAL_WEIGHTS * _TOKENS / flops)
    link = Link(
        bandwidth_bytes_per_second=weight_bytes / (real_ratio(world) * seconds),
        latency_seconds=world.between_hosts.latency_seconds * scale,
    )
    return hosts_of_one(world.accelerators, link)


def speeds_of(world: Cluster) -> tuple[float, ...]:
    """Return the speeds of emulated accelerators, which are to each other as the world's are."""
    return world.for_model(world.hosts[0].flops_per_second or 0.0, _SPEED).speeds


def hosts_of_one(count: int, link: Link) -> Cluster:
    """Return hosts of one accelerator each, with a link between any two."""
    host = Host(name="host", count=count, accelerators=1)
    return Cluster(hosts=(host,), within_host=link, between_hosts=link)


@dataclass(frozen=True)
class World:
    """A model on emulated accelerators with the links of a world.

    Attributes:
        captured: the model.
        profile: of it, on these accelerators.
        cluster: these, with the world's links to scale.
        optimizer, method: of the session.
    """

    captured: CapturedModel
    profile: Profile
    cluster: Cluster
    optimizer: OptimizerSpec
    method: Method

    @classmethod
    def of(
        cls,
        model: str,
        world: str,
        repeats: int = 10,
        optimizer: OptimizerSpec = _ADAMW,
        method: Method = DEFAULT_METHOD,
        memory_ratio: float = 0.0,
    ) -> World:
        """Profile a model, and scale the links, and memory to R_m; 0 does not limit it.

        Raises:
            RunFailure: the profile cannot be taken.
        """
        name, options = MODELS[model]
        captured = capture(ModelReference.named(name, "small", **options))
        named = read_cluster(world)
        speeds = speeds_of(named)
        with _session(captured, speeds, None, optimizer, method) as session:
            profile, here = session.profile(repeats)
        plain = _predictions(profile, here, optimizer).plain
        bytes_, seconds = captured.graph.parameter_bytes, plain.seconds_per_minibatch
        links = scaled_links(named, bytes_, seconds)
        if memory_ratio:
            limit = {"memory_bytes": plain.memory_bytes / memory_ratio}
            links = links.with_hosts([host.model_copy(update=limit) for host in links.hosts])
        return cls(captured, profile, links.with_speeds(speeds), optimizer, method)

    @property
    def predicted(self) -> WaysOfTraining:
        """What torch's own ways of training are predicted to take."""
        return _predictions(self.profile, self.cluster, self.optimizer)

    def plan(self) -> Plan:
        """Plan for it, to a loss."""
        return plan(
            self.captured,
            profile=self.profile,
            cluster=self.cluster,
            optimizer=self.optimizer,
            method=self.method,
        )

    def session(self) -> ClusterSession:
        """Start the emulated accelerators."""
        return _session(
            self.captured, self.cluster.speeds, self.cluster, self.optimizer, self.method
        )


def _session(
    captured: CapturedModel,
    speeds: Sequence[float],
    links: Cluster | None,
    optimizer: OptimizerSpec,
    method: Method,
) -> ClusterSession:
    return ClusterSession(
        captured,
        len(speeds),
        speeds=speeds,
        links=links,
        optimizer=optimizer,
        method=method,
        note=lambda _: None,
    )


def _predictions(profile: Profile, cluster: Cluster, optimizer: OptimizerSpec) -> WaysOfTraining:
    problem = PlanningProblem.profiled(profile, cluster, Method(), optimizer)
    return ways_of_training(problem, profile.batch_size)
