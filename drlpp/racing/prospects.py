"""Who takes part in a race to a loss: what the simulator and the lateness of gradients promise.

Training to a loss takes minutes, predicting it nothing: seconds per minibatch as simulated, times
the samples that late gradients cost. What is far behind by that product does not start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from drlpp.errors import InvalidInput
from drlpp.placement.candidate import Candidate
from drlpp.placement.placement import Placement, Stage
from drlpp.racing.contenders import Contender
from drlpp.racing.rivals import TODAY, Grounds
from drlpp.runtime.session.session import ClusterSession
from drlpp.schedule.analysis.staleness import mean_staleness, samples_needed

MOST = 6
"""How many train, unless a user names more."""

_BEHIND = 1.5
"""What is expected to take this many times as long as the best does not start."""


def expected_seconds(grounds: Grounds, one: Contender) -> float:
    """Return seconds for as much progress as a minibatch of plain PyTorch makes, roughly.

    Infinite is what cannot be run, or does not fit in memory. Plain PyTorch counts as one stage on
    one worker.
    """
    session, speeds = grounds.session, grounds.cluster.speeds
    operators = tuple(range(len(session.graph)))
    whole = Stage(operators=operators, accelerators=(speeds.index(max(speeds)),))
    candidate = one.candidate or Candidate(Placement(stages=(whole,)), one.method)
    try:
        plan = session.plan(candidate)
    except InvalidInput:
        return math.inf
    too_large, seconds = grounds.seconds(candidate)
    late = mean_staleness(plan.pipeline, plan.method)
    return math.inf if too_large else seconds * samples_needed(late, plan.method.policy)


def with_a_chance(
    grounds: Grounds, usual: Sequence[Contender], named: Iterable[Contender] = ()
) -> tuple[list[Contender], str | None]:
    """Return what trains of the usual candidates, and a line that names what does not.

    What a user has today trains in any case. Of the others, those that are expected to be within
    1.5 times of the best, and so many that with what is named there are six.

    Args:
        grounds: what is known of model and workers.
        usual: in the order of the race.
        named: what a user has asked for, which trains in any case.
    """
    named = list(named)
    expected = [expected_seconds(grounds, one) for one in usual]
    best = min([*expected, *(expected_seconds(grounds, one) for one in named)])
    kept = {i for i, one in enumerate(usual) if any(name in TODAY for name in one.names)}
    room = max(MOST - len(named) - len(kept), 0)
    others = sorted(set(range(len(usual))) - kept, key=lambda i: (expected[i], i))
    limit = _BEHIND * best if math.isfinite(best) else 0.0
    kept |= {i for i in others[:room] if expected[i] <= limit}
    left_out = [
        f"{usual[i].found_by} {usual[i].configuration} ({usual[i].method.schedule}, "
        + (f"{expected[i] / best:.1f}×)" if math.isfinite(expected[i]) else "cannot be run)")
        for i in others
        if i not in kept
    ]
    line = None
    if left_out:
        line = f"expected to be late at the loss, so not trained: {', '.join(left_out)}"
    return [one for i, one in enumerate(usual) if i in kept], line


def learning_rates_shared(session: ClusterSession, candidates: Sequence[Contender]) -> list[int]:
    """Return for each candidate the first one whose gradients are as late: it has the same rate.

    As late are those with the same weight policy and minibatches of an update, and the same number
    of updates in between, rounded up. All that are not late train alike, whatever their schedule.
    """
    first: dict[object, int] = {}
    found = []
    for number, one in enumerate(candidates):
        kind: tuple[object, ...] = 0, "", one.method.accumulate
        if one.candidate is not None:
            try:
                pipeline = session.plan(one.candidate).pipeline
            except InvalidInput:
                kind = (number,)
            else:
                late = math.ceil(mean_staleness(pipeline, one.method))
                updates = {one.method.minibatches_of_update(len(held)) for held in pipeline.stages}
                kind = late, one.method.policy if late else "", *sorted(updates)
        found.append(first.setdefault(kind, number))
    return found
