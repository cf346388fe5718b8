"""What short runs of a pipeline say that its operators alone do not.

A profile times passes with nothing around them. In a pipeline they take longer: activations of
several minibatches are in memory, other workers and the sums of replicas use the same caches and
threads, messages are packed and unpacked; and since no two passes take the same time, even the
busiest worker waits now and then. No part of the profile has this, so a few short runs of the whole
tell it, as factors of what is predicted: one for stages of a pipeline, and one for replicas.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev

from drlpp.costs.buckets import SumsLeft
from drlpp.costs.placed_stages import PlacedStages
from drlpp.costs.placement_rule import PlacementRule, predict
from drlpp.costs.profile import Profile, RunFactors
from drlpp.costs.workload import Workload
from drlpp.placement.measurement import Measurement, Outcome
from drlpp.placement.placement import Placement, Stage
from drlpp.specs.cluster import Cluster

SHORT_MINIBATCHES = 8
"""Of a short run, after its warm-up."""

USUAL_SPREAD = 0.07
"""How far off a prediction usually is, as a standard deviation of the logarithm: half of 36 were
off by less than 4.8% (``benchmarks.prediction``)."""

_USUAL_RUNS = 4
"""What is usual counts for so many runs: a few of them are alike by chance."""

MOST = 2.0
"""A factor beyond it says nothing of passes: of a model this small, or on a machine this busy."""


def short_placements(profile: Profile, accelerators: Sequence[int]) -> Iterator[Placement]:
    """Yield what to run: a straight pipeline on all accelerators, one on two, and replicas on all.

    Pipelines are cut where each stage has about the same seconds. There is nothing to run on a
    single accelerator.
    """
    operators = len(profile.graph)
    for stages in dict.fromkeys((len(accelerators), 2)):
        if 1 < stages <= min(operators, len(accelerators)):
            yield Placement.straight(profile.seconds, accelerators[:stages])
    if len(accelerators) > 1:
        whole = Stage(operators=tuple(range(operators)), accelerators=tuple(accelerators))
        yield Placement(stages=(whole,))


def run_short(
    profile: Profile, accelerators: Sequence[int], measure: Callable[[Placement], Outcome]
) -> dict[Placement, Measurement]:
    """Run each of :func:`short_placements` twice; the faster counts, and what failed is left out.

    What disturbs a run makes it slower, and seldom both.
    """
    fastest: dict[Placement, Measurement] = {}
    for placement in 2 * list(short_placements(profile, accelerators)):
        found = measure(placement)
        if isinstance(found, Measurement):
            other = fastest.get(placement, found)
            fastest[placement] = min(found, other, key=lambda run: run.seconds_per_minibatch)
    return fastest


def with_short_runs(
    profile: Profile,
    workload: Workload,
    cluster: Cluster,
    runs: Mapping[Placement, Measurement],
    note: Callable[[str], None],
) -> Profile:
    """Return the profile with the factors that some runs show.

    Args:
        profile: of operators.
        workload: of it, under the method of the runs.
        cluster: that they ran on.
        runs: of :func:`short_placements`; those that failed are left out, and what no run tells
            stays unknown.
        note: called with a line if a factor cannot be believed, which is left out.
    """
    found: dict[str, list[_Seen]] = {"in_pipeline": [], "replicated": []}
    for placement, measured in runs.items():
        kind = "in_pipeline" if len(placement.stages) > 1 else "replicated"
        found[kind].append(_seen(workload, cluster, placement, measured))
    factors = {kind: _factors(seen) for kind, seen in found.items() if seen}
    usable = {kind: one for kind, one in factors.items() if one.seconds <= MOST}
    if len(usable) < len(factors):
        largest = max(one.seconds for one in factors.values())
        note(
            f"short pipelines took {largest:.1f} times as long as their operators alone: the model "
            "is too small for a pipeline, or other programs are running; predicted times are too "
            "short (use larger minibatches, or end the programs and profile again)"
        )
    return profile.model_copy(update=usable)


_Seen = tuple[tuple[float, ...], float]
"""Of one run, relative to what was predicted: what every worker computed, and the whole."""


def _seen(
    workload: Workload, cluster: Cluster, placement: Placement, measured: Measurement
) -> _Seen:
    predicted, passes = predict(workload, cluster, placement), []
    for usage in measured.workers:
        stage = predicted.stages[usage.stage]
        # The slowest accelerator of a stage rules what is predicted for it.
        slowest = min(cluster.speeds[accelerator] for accelerator in stage.accelerators)
        expected = stage.compute_seconds * slowest / cluster.speeds[usage.worker]
        busy = usage.busy_seconds / measured.minibatches
        if expected > 0 and busy > 0:
            passes.append(busy / expected)
    # Where messages rule, the whole says nothing of passes.
    by_stages = max(s.compute_seconds + s.all_reduce_left_seconds for s in predicted.stages)
    whole = fmean(passes) if passes else 1.0
    if 0 < predicted.seconds_per_minibatch <= by_stages:
        # What buckets wait for the simulator knows anyway.
        placed = PlacedStages(workload, placement)
        least = SumsLeft()(placed, PlacementRule(cluster).groups_of(placed.holders))
        whole = measured.seconds_per_minibatch / max(predicted.seconds_per_minibatch, least)
    return tuple(passes), whole


def _factors(seen: Sequence[_Seen]) -> RunFactors:
    """Return means of logarithms, at least 1.

    The spread is that of workers and runs together, as far as they tell more than what is usual.
    """

    def middle(values: Sequence[float]) -> float:
        return math.exp(fmean(map(math.log, values))) if values else 1.0

    passes = [value for of_run, _ in seen for value in of_run]
    wholes = [whole for _, whole in seen]
    around = [math.log(value / middle(of_run)) for of_run, _ in seen for value in of_run]
    between = [math.log(value) for value in wholes]
    freedom = len(seen) - 1
    variance = sum(stdev(logs) ** 2 for logs in (around, between) if len(logs) > 1)
    spread = math.sqrt(
        (_USUAL_RUNS * USUAL_SPREAD**2 + freedom * variance) / (_USUAL_RUNS + freedom)
    )
    return RunFactors(
        passes=max(middle(passes), 1.0),
        seconds=max(middle(wholes), middle(passes), 1.0),
        spread=spread,
    )
