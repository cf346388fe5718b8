"""The analytic simulator: predicts the seconds per minibatch of asynchronous 1F1B.

In steady state nothing flushes the pipeline, so it runs at the rate of its slowest part
(pipedream §3.1). With m_k replicas of stage k, T_k the forward and backward seconds of its
operators, W_k its parameter bytes, B the bandwidth and λ the latency of a link, the parts are, in
seconds per minibatch:

* **compute** of stage k: (T_k + U_k) / (m_k · v_k). The replicas take minibatches round-robin, so
  each sees one in m_k, and the slowest one, of relative speed v_k, sets the pace. U_k is the time
  of the optimizer, once a round of m_k minibatches on every replica: U_k counts in full for a
  round, as T_k does.
* **all-reduce** of stage k: one ring all-reduce for each round, in which a replica sends
  2(m_k − 1)/m_k · W_k bytes in 2(m_k − 1) messages over the slowest link of the ring:
  (2(m_k − 1)/m_k · W_k / B + 2(m_k − 1) · λ) / m_k. It overlaps with the compute of the stage, so
  the slower of the two counts, which is the max in pipedream's T(i → j, m). The paper writes
  2(m − 1) W / B there; a ring moves 1/m of that.
* **link** from stage p to stage q: the activations of a minibatch forward and their gradients
  back, λ + bytes / B each. Replicas use their links in parallel, so the busiest replica counts:
  for equal links the sum is divided by min(m_p, m_q).

The prediction is the maximum over all parts, since compute and communication overlap. Left out:
contention between links, memory, and what a limited number of minibatches in flight costs: on slow
links, and where a later stage has more replicas than an earlier one, whose next round cannot be
filled while the current one runs (a balanced 1-2 takes 1.26 times the prediction when played).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

from drlpp.cluster import Cluster
from drlpp.errors import InvalidCluster, InvalidInput
from drlpp.files import Record
from drlpp.graph import OpGraph
from drlpp.measurement import Measurement, Outcome
from drlpp.placement import Placement
from drlpp.profile import Profile
from drlpp.schedule import (
    Action,
    AllReduce,
    Backward,
    Forward,
    Receive,
    Recompute,
    Send,
    Update,
)


class StagePrediction(Record):
    """Seconds per minibatch that a stage needs; compute and all-reduce overlap."""

    compute_seconds: float
    update_seconds: float
    all_reduce_seconds: float


class LinkPrediction(Record):
    """What goes between two stages for each minibatch, and the seconds per minibatch it takes."""

    source_stage: int
    target_stage: int
    activation_bytes: int
    gradient_bytes: int
    seconds: float


class Prediction(Record):
    """Predicted seconds per minibatch of a placement, its parts, and the part that rules."""

    seconds_per_minibatch: float
    stages: tuple[StagePrediction, ...]
    links: tuple[LinkPrediction, ...]
    bottleneck: str


def predict(
    graph: OpGraph,
    profile: Profile,
    cluster: Cluster,
    placement: Placement,
    speeds: Sequence[float] | None = None,
) -> Prediction:
    """Predict the steady state of asynchronous 1F1B on a valid placement (formulas above).

    Args:
        graph: the model.
        profile: its costs on an accelerator of speed 1.
        cluster: the links.
        placement: which passed ``validate_for``.
        speeds: relative speed of every accelerator; 1 each if not given.
    """
    costs = _Costs(graph, profile, cluster, placement, speeds)
    stages = tuple(costs.stage(index) for index in range(len(placement.stages)))
    links = tuple(costs.link(*edge) for edge in sorted(costs.activation_bytes))
    parts: list[tuple[float, str]] = []
    for index, stage in enumerate(stages):
        replicas = len(placement.stages[index].accelerators)
        where = f"stage {index}" + (f" ({replicas} replicas)" if replicas > 1 else "")
        parts.append((stage.compute_seconds + stage.update_seconds, f"compute of {where}"))
        parts.append((stage.all_reduce_seconds, f"all-reduce of {where}"))
    parts += [
        (link.seconds, f"link from stage {link.source_stage} to stage {link.target_stage}")
        for link in links
    ]
    seconds, bottleneck = max(parts, key=lambda part: part[0])
    return Prediction(
        seconds_per_minibatch=seconds, stages=stages, links=links, bottleneck=bottleneck
    )


def action_seconds(
    graph: OpGraph,
    profile: Profile,
    cluster: Cluster,
    placement: Placement,
    speeds: Sequence[float] | None = None,
    microbatches: int = 1,
) -> Callable[[int, Action], float]:
    """The duration of every action, for :func:`drlpp.timeline.play`.

    With ``microbatches``, passes and messages take that part of a minibatch's time.
    """
    costs = _Costs(graph, profile, cluster, placement, speeds)
    stage_of = {
        accelerator: index
        for index, stage in enumerate(placement.stages)
        for accelerator in stage.accelerators
    }

    def seconds_of(worker: int, action: Action) -> float:
        stage = stage_of[worker]
        match action:
            case Forward() | Recompute():
                return costs.forward_seconds[stage] / microbatches / costs.speeds[worker]
            case Backward():
                return costs.backward_seconds[stage] / microbatches / costs.speeds[worker]
            case Update():
                return costs.update_seconds[stage] / costs.speeds[worker]
            case AllReduce(_, _, "squared_norm"):
                return 0.0
            case AllReduce():
                return costs.ring_seconds(stage)
            case Receive(message, sender):
                edge = (message.source_stage, message.target_stage)
                bytes_ = (
                    costs.activation_bytes[edge]
                    if message.payload == "activation"
                    else costs.gradient_bytes[edge[::-1]]
                )
                return cluster.link(sender, worker).seconds(bytes_ / microbatches)
            case Send():
                return 0.0

    return seconds_of


class SimulatedCluster:
    """A cluster that predicts instead of running: it measures placements as a live one does.

    Args:
        graph: the model.
        profile: its costs on an accelerator of speed 1.
        cluster: the accelerators and their links.
        speeds: relative speed of every accelerator (0.5 takes twice as long); 1 each if not given.

    Raises:
        InvalidInput: if the profile belongs to another graph.
        InvalidCluster: if ``speeds`` do not fit the cluster.
    """

    def __init__(
        self,
        graph: OpGraph,
        profile: Profile,
        cluster: Cluster,
        speeds: Sequence[float] | None = None,
    ) -> None:
        check_profile(graph, profile)
        if speeds is not None and len(speeds) != cluster.accelerators:
            raise InvalidCluster(
                f"{len(speeds)} speeds given for {cluster.accelerators} accelerators; "
                "expected one for each"
            )
        if speeds is not None and not all(speed > 0 for speed in speeds):
            raise InvalidCluster(f"speeds are {list(speeds)}; every one must be above 0")
        self.graph = graph
        self.profile = profile
        self.cluster = cluster
        self.speeds = speeds

    @property
    def accelerators(self) -> int:
        """The number of accelerators."""
        return self.cluster.accelerators

    def measure(self, placement: Placement, minibatches: int = 30) -> Outcome:
        """Predict ``placement``; the same placement always gives the same measurement.

        Raises:
            InvalidPlacement: if it cannot run on this cluster.
        """
        placement.validate_for(self.graph, self.accelerators)
        prediction = predict(self.graph, self.profile, self.cluster, placement, self.speeds)
        seconds = prediction.seconds_per_minibatch
        return Measurement(
            seconds_per_minibatch=seconds,
            median_seconds=seconds,
            standard_deviation_seconds=0.0,
            minibatches=minibatches,
        )

    def close(self) -> None:
        """Do nothing: there are no workers to stop."""


def check_profile(graph: OpGraph, profile: Profile) -> None:
    """Check that ``profile`` holds the costs of ``graph``.

    Raises:
        InvalidInput: if it was measured on another graph, or lacks operators.
    """
    if profile.graph_fingerprint != graph.fingerprint:
        raise InvalidInput(
            f"the profile is of {profile.model} (fingerprint {profile.graph_fingerprint}), but the "
            f"graph is {graph.model} ({graph.fingerprint}); profile this model again"
        )
    if len(profile.operators) != len(graph):
        raise InvalidInput(
            f"the profile of {profile.model} has {len(profile.operators)} operators, but its graph "
            f"has {len(graph)}; profile this model again"
        )


class _Costs:
    """Seconds and bytes of the stages of one placement, at speed 1 and for one minibatch."""

    def __init__(
        self,
        graph: OpGraph,
        profile: Profile,
        cluster: Cluster,
        placement: Placement,
        speeds: Sequence[float] | None,
    ) -> None:
        self.cluster = cluster
        self.placement = placement
        self.speeds = speeds if speeds is not None else (1.0,) * cluster.accelerators
        self.forward_seconds, self.backward_seconds = [], []
        self.parameter_bytes, self.update_seconds = [], []
        for stage in placement.stages:
            operators = [profile.operators[operator] for operator in stage.operators]
            bytes_ = sum(graph.operators[operator].parameter_bytes for operator in stage.operators)
            self.forward_seconds.append(sum(operator.forward_seconds for operator in operators))
            self.backward_seconds.append(sum(operator.backward_seconds for operator in operators))
            self.parameter_bytes.append(bytes_)
            self.update_seconds.append(bytes_ * profile.update_seconds_per_byte)
        self.activation_bytes, self.gradient_bytes = _transfers(graph, placement)

    def stage(self, index: int) -> StagePrediction:
        accelerators = self.placement.stages[index].accelerators
        rate = len(accelerators) * min(self.speeds[accelerator] for accelerator in accelerators)
        return StagePrediction(
            compute_seconds=(self.forward_seconds[index] + self.backward_seconds[index]) / rate,
            update_seconds=self.update_seconds[index] / rate,
            all_reduce_seconds=self.ring_seconds(index) / len(accelerators),
        )

    def ring_seconds(self, index: int) -> float:
        """Seconds of one ring all-reduce of the gradients of a stage: 2(m − 1) equal messages."""
        ring = self.placement.stages[index].accelerators
        if len(ring) == 1:
            return 0.0
        message = self.parameter_bytes[index] / len(ring)
        slowest = max(
            self.cluster.link(one, other).seconds(message)
            for one, other in pairwise((*ring, ring[0]))
        )
        return 2 * (len(ring) - 1) * slowest

    def link(self, source: int, target: int) -> LinkPrediction:
        activation, gradient = (
            bytes_[source, target] for bytes_ in (self.activation_bytes, self.gradient_bytes)
        )
        senders = self.placement.stages[source].accelerators
        receivers = self.placement.stages[target].accelerators
        # Round-robin pairs replicas up in a pattern that repeats after this many minibatches.
        period = math.lcm(len(senders), len(receivers))
        busy = dict.fromkeys((*senders, *receivers), 0.0)
        for minibatch in range(period):
            sender = senders[minibatch % len(senders)]
            receiver = receivers[minibatch % len(receivers)]
            link = self.cluster.link(sender, receiver)
            seconds = link.seconds(activation) + (link.seconds(gradient) if gradient else 0.0)
            busy[sender] += seconds
            busy[receiver] += seconds
        return LinkPrediction(
            source_stage=source,
            target_stage=target,
            activation_bytes=activation,
            gradient_bytes=gradient,
            seconds=max(busy.values()) / period,
        )


_StageBytes = dict[tuple[int, int], int]


def _transfers(graph: OpGraph, placement: Placement) -> tuple[_StageBytes, _StageBytes]:
    """Activation and gradient bytes by (source stage, target stage), for one minibatch.

    Besides what operators read, what the model returns goes to the last stage, where the loss is;
    only floating tensors have gradients.
    """
    stage_of = placement.stage_of_operator(len(graph))
    last = len(placement.stages) - 1
    readers = [
        (edge.source, output, stage_of[edge.target])
        for edge in graph.edges
        for output in edge.outputs
    ]
    readers += [(operator, output, last) for operator, output in graph.outputs]
    activation: _StageBytes = {}
    gradient: _StageBytes = {}
    for operator, output, target in sorted(set(readers)):
        edge = (stage_of[operator], target)
        if edge[0] == edge[1]:
            continue
        tensor = graph.operators[operator].outputs[output]
        activation[edge] = activation.get(edge, 0) + tensor.bytes_
        gradient[edge] = gradient.get(edge, 0) + tensor.differentiable * tensor.bytes_
    return activation, gradient
