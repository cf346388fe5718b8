"""Profiling on the workers of a session: operators, links, and a few short runs.

Every operator runs as a stage of its own, then the model in a few parts, then the whole. The first
says how the time is divided among operators, the last how much it is. The whole runs again on a
microbatch, which takes more than its share of a minibatch's time. A model in n parts takes
longer than the whole: what a stage's passes and updates cost besides their operators is found by
comparing the two, what splitting backwards costs by training the parts with backwards in halves,
and what sharing gradients costs by training the whole as a replica does.
"""

from __future__ import annotations

import pickle
import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from drlpp.capturing.blocks import shorten
from drlpp.capturing.capture import CapturedModel
from drlpp.costs.profile import OperatorProfile, Profile
from drlpp.costs.short_runs import SHORT_MINIBATCHES, run_short, with_short_runs
from drlpp.costs.workload import Workload
from drlpp.errors import InvalidModel
from drlpp.io.documents import read_document, write_document
from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import Outcome
from drlpp.placement.placement import Placement
from drlpp.runtime.deploying.stage_cutting import cut_stages
from drlpp.runtime.device.devices import DeviceFacts
from drlpp.runtime.hosts.host import WorkerHost
from drlpp.runtime.ipc.protocol import TimeTraining, TrainingTimes
from drlpp.runtime.session.measured_cluster import (
    crowded_host,
    session_cluster,
    time_hosts,
    time_speeds,
)
from drlpp.runtime.stage.graph_code import discarded_fx_sources
from drlpp.runtime.worker.operator_timing import (
    BACKWARD,
    FORWARD,
    SECOND_HALF,
    UPDATE,
)
from drlpp.schedule.method import Method
from drlpp.schedule.weight_policies import STASH
from drlpp.specs.cluster import Cluster
from drlpp.specs.optimizer_spec import settled

if TYPE_CHECKING:
    from drlpp.runtime.session.session import ClusterSession

_OPERATORS, _WHOLE, _SHARED = "operators", "whole", "shared"
_PARTS, _HALVES, _MICROBATCH = "parts", "halves", "microbatch"
_MOST_PARTS = 8
_MICROBATCHES = (4, 2)
"""One of so many equal parts of a minibatch is timed, too."""


def profiled(session: ClusterSession, repeats: int) -> tuple[Profile, Cluster]:
    """Return what :meth:`ClusterSession.profile` says."""
    session.prepare()
    hosts = list(session.of_worker.values())
    devices = [session.devices[worker] for worker in range(session.accelerators)]
    measuring = measuring_workers(session.speeds, hosts, devices)
    short = shorten(session.captured)
    timed = short.captured
    trainings = _trainings(session, timed, repeats, shared=len(measuring) > 1)
    times: dict[str, list[TrainingTimes]] = {}
    for name, training in trainings.items():
        command = training
        if name == _SHARED:
            group = session.new_group("profile", measuring, replicas=tuple(measuring))
            fewest = min(len(found.seconds[FORWARD][0]) for found in times[_WHOLE])
            command = replace(training, repeats=fewest, group=group)
        times[name] = list(session.command(dict.fromkeys(measuring, command)).values())
    if session.links is None:
        links = time_hosts(session, repeats)
        speeds: Sequence[float] = session.speeds
        if min(speeds) == 1:
            known = dict(zip(measuring, times[_WHOLE], strict=True))
            speeds = time_speeds(session, trainings[_WHOLE], known)
        cluster = session_cluster(hosts, devices, speeds, links)
    else:
        cluster = session.links.with_speeds(session.speeds)
    if crowded := crowded_host(session.speeds, hosts, devices):
        session.note(crowded)
    microbatches = trainings[_MICROBATCH].microbatches if _MICROBATCH in trainings else 1
    profile = profile_of(timed, times, microbatches)
    if timed is not session.captured:
        profile = profile.of_repeated_blocks(session.graph, short.alike)

    # A few pipelines of the whole: what they take longer than the profile says is added.
    precision = session.method.precision
    method = Method()
    if precision != method.precision:
        # Autocast's copies of weights make all policies recompute that move them.
        method = Method(policy=STASH.name, precision=precision)

    def measure(placement: Placement) -> Outcome:
        return session.measure(Candidate(placement, method), SHORT_MINIBATCHES)

    runs = run_short(profile, measuring, measure)
    session.timeline = ()
    workload = Workload.of(profile, method)
    return with_short_runs(profile, workload, cluster, runs, session.note), cluster


def load_or_measure_profile(session: ClusterSession, folder: Path) -> tuple[Profile, Cluster]:
    """Time operators and links on the workers, or take what an interrupted run has measured.

    Raises:
        RunFailure: if the workers fail.
    """
    profile_path, cluster_path = folder / "profile.json", folder / "cluster.yaml"
    if profile_path.exists() and cluster_path.exists():
        return read_document(profile_path, Profile), read_document(cluster_path, Cluster)
    profile, cluster = session.profile()
    write_document(profile_path, profile)
    write_document(cluster_path, cluster)
    return profile, cluster


def measuring_workers(
    speeds: Sequence[float], hosts: Sequence[WorkerHost], devices: Sequence[DeviceFacts]
) -> range:
    """Return the workers that measure at the same time: as many as compute together in training.

    At full speed that is one for each GPU, or core.
    They are on the first one's machine, usually the controller's, which others are compared with.
    """
    first = hosts[0]
    on_it = sum(host.machine == first.machine for host in hosts)
    if min(speeds) < 1:
        return range(on_it)
    gpus = {device.identity for device in devices[:on_it] if device.type != "cpu"}
    return range(min(on_it, len(gpus) or len(first.cores)))


@discarded_fx_sources()
def _trainings(
    session: ClusterSession, captured: CapturedModel, repeats: int, *, shared: bool
) -> dict[str, TimeTraining]:
    """Return the trainings that are timed of a model with fewer blocks."""
    count = len(captured.graph)
    optimizer = settled(session.optimizer, captured.trained, captured.aliases)

    def training(model: CapturedModel, stages: int, **options: Any) -> TimeTraining:
        programs = pickle.dumps(cut_stages(model, _even_cut(count, stages)))
        return TimeTraining(programs, optimizer, repeats, **options)

    parts = min(_MOST_PARTS, count)
    found = {
        _OPERATORS: training(captured, count, alone=True),
        _WHOLE: training(captured, 1, method=session.method),
        **({_SHARED: training(captured, 1)} if shared else {}),
        _PARTS: training(captured, parts),
        _HALVES: training(captured, parts, in_halves=True),
    }
    for microbatches in _MICROBATCHES:
        if captured.task.batch_size % microbatches == 0:
            with suppress(InvalidModel):
                divided = shorten(session.captured.microbatch(microbatches)).captured
                # What is equal with many samples, may differ with few, or the other way round.
                if divided.graph.fingerprint == captured.graph.fingerprint:
                    return found | {_MICROBATCH: training(divided, 1, microbatches=microbatches)}
    return found


def _even_cut(operators: int, stages: int) -> Placement:
    """Cut the graph into runs of consecutive operators, with about as many in each."""
    return Placement.straight([1] * operators, range(stages))


def profile_of(
    captured: CapturedModel, times: Mapping[str, Sequence[TrainingTimes]], microbatches: int = 1
) -> Profile:
    """Return the profile of a model from what one or more workers measured at the same time.

    A pass of a stage costs c besides its operators. In n parts the model takes n of them, as a
    whole one: c = (parts − whole) / (n − 1). What is left of the whole is divided among operators
    in proportion to what they took alone, without what each took too long by being alone. Updates
    cost likewise, where parts without parameters make none.
    """
    operators = captured.graph.operators
    # Of every training and kind of pass: (stages, repetitions on all workers).
    seconds = {
        (name, kind): numpy.hstack([one.seconds[kind] for one in found])
        for name, found in times.items()
        for kind in found[0].seconds
    }
    parts = _even_cut(len(operators), len(seconds[_PARTS, FORWARD])).stages
    weighted = [[op for op in part.operators if operators[op].parameter_bytes] for part in parts]
    forward, forward_overhead = _divided(seconds, FORWARD, len(parts))
    backward, backward_overhead = _divided(seconds, BACKWARD, len(parts))
    _, update_overhead = _divided(seconds, UPDATE, sum(map(bool, weighted)))
    update = _total(seconds[_WHOLE, UPDATE]) - update_overhead
    sharing = 0.0
    if (_SHARED, UPDATE) in seconds:
        sharing = sum(
            _total(seconds[_SHARED, kind]) - _total(seconds[_WHOLE, kind])
            for kind in (BACKWARD, UPDATE)
        )
    fixed_share = _fixed_share(seconds, microbatches, forward_overhead + backward_overhead)
    split_seconds, weight_share = _halves(seconds, weighted, backward, backward_overhead)
    predictions = [value for one in times[_WHOLE] for value in one.prediction_seconds]
    prediction = statistics.median(predictions) if predictions else 0.0
    weight_bytes = max(captured.graph.parameter_bytes, 1)
    return Profile(
        graph=captured.graph,
        device=times[_WHOLE][0].device,
        batch_size=captured.task.batch_size,
        operators=tuple(
            OperatorProfile(
                forward_seconds=forward[op.id],
                backward_seconds=backward[op.id],
                forward_spread_seconds=_spread(seconds[_OPERATORS, FORWARD][op.id].tolist()),
                backward_spread_seconds=_spread(seconds[_OPERATORS, BACKWARD][op.id].tolist()),
                kept_bytes=times[_OPERATORS][0].kept_bytes[op.id],
            )
            for op in operators
        ),
        forward_overhead_seconds=forward_overhead,
        backward_overhead_seconds=backward_overhead,
        fixed_share=fixed_share,
        split_seconds=split_seconds,
        weight_share=weight_share,
        update_overhead_seconds=update_overhead,
        update_seconds_per_byte=update / weight_bytes,
        prediction_seconds_per_byte=prediction / weight_bytes,
        sharing_seconds_per_byte=max(sharing, 0.0) / weight_bytes,
    )


_Seconds = Mapping[tuple[str, str], Any]


def _total(stages: Any) -> float:
    """Return the median over repetitions of the sum over all stages."""
    return float(numpy.median(stages.sum(axis=0)))


def _divided(seconds: _Seconds, kind: str, number: int) -> tuple[list[float], float]:
    """Return seconds of every operator, and what a stage takes besides, from ``number`` parts."""
    whole, parts = _total(seconds[_WHOLE, kind]), _total(seconds[_PARTS, kind])
    # When other programs disturb the parts, they can seem to cost more than there is.
    overhead = min(max(parts - whole, 0.0) / max(number - 1, 1), whole)
    alone = numpy.median(seconds[_OPERATORS, kind], axis=1)
    left = whole - overhead
    too_long = max(alone.sum() - left, 0.0) / len(alone)
    shares = numpy.maximum(alone - too_long, 0.0)
    scale = left / shares.sum() if shares.sum() else 0.0
    return (shares * scale).tolist(), overhead


def _fixed_share(seconds: _Seconds, microbatches: int, overhead: float) -> float:
    """Return the part of a minibatch's passes that a microbatch takes as well, see the profile.

    With it, one of M microbatches takes T·(f + (1 − f)/M) of a minibatch's T seconds. The overhead
    is that of a forward and a backward, whatever is computed.
    """
    if microbatches == 1:
        return 0.0
    whole, part = (
        max(_total(seconds[name, FORWARD][:1] + seconds[name, BACKWARD][:1]) - overhead, 0.0)
        for name in (_WHOLE, _MICROBATCH)
    )
    share = (microbatches * part / whole - 1) / (microbatches - 1) if whole else 0.0
    return min(max(share, 0.0), 1.0)


def _halves(
    seconds: _Seconds,
    weighted: Sequence[Sequence[int]],
    backward: Sequence[float],
    overhead: float,
) -> tuple[float, float]:
    """Return what splitting a backward takes for an operator with weights, and the second half.

    The second half as a part of the backward of operators with weights. The first part has nothing
    to do in a first half, and one without weights nothing in a second.

    Args:
        seconds: of the parts, with whole backwards and with halves.
        weighted: the operators with weights of every part.
        backward: seconds of every operator.
        overhead: of a backward, which each half has.
    """
    chosen = [part for part, found in enumerate(weighted) if part and found]
    if not chosen:
        return 0.0, 0.5
    second, first, whole = (
        float(numpy.median(seconds[key][chosen], axis=1).sum())
        for key in ((_HALVES, SECOND_HALF), (_HALVES, BACKWARD), (_PARTS, BACKWARD))
    )
    count = sum(len(weighted[part]) for part in chosen)
    beyond = first + second - whole - len(chosen) * overhead
    split = max(beyond, 0.0) / count
    computed = second - len(chosen) * overhead - split * count / 2
    of_weighted = sum(backward[op] for part in chosen for op in weighted[part])
    share = computed / of_weighted if of_weighted else 0.5
    return split, min(max(share, 0.0), 1.0)


def _spread(values: Sequence[float]) -> float:
    """Return half of the range of the middle half."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4)
    return (third - first) / 2
