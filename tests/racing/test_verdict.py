"""What a race says: gains are claimed where there are some, and the simplest of equals is named."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from drlpp.placement.placement import Placement
from drlpp.racing.contenders import Contender
from drlpp.racing.race import race
from drlpp.racing.verdict import Verdict, is_learned, judge
from drlpp.schedule.method import Method


def contender(stages: int, workers: int, **method: Any) -> Contender:
    placement = Placement.from_assignment(
        range(stages), [min(w, stages - 1) for w in range(workers)]
    )
    return Contender(found_by="", placement=placement, method=Method(**method))


PLAIN = Contender(found_by="", method=Method(), threads=2)
WHOLE, HALVES, THIRDS = contender(1, 2), contender(2, 2), contender(3, 3)
FLUSHED = contender(2, 2, schedule="gpipe", policy="sync")


Entrant = tuple[Contender, Sequence[float]]


def entrant(name: str, ran: Contender, seconds: Sequence[float] | float) -> Entrant:
    """Found by an agent if the name is; a number is the seconds of five rounds without noise."""
    found = ran.model_copy(update={"found_by": name})
    return found, (seconds,) * 5 if isinstance(seconds, float) else tuple(seconds)


def judged(entrants: Sequence[Entrant]) -> Verdict | None:
    return judge([one for one, _ in entrants], [costs for _, costs in entrants], Method())


def verdict_of(entrants: Sequence[Entrant]) -> Verdict:
    verdict = judged(entrants)
    assert verdict is not None
    return verdict


def told(entrants: Sequence[Entrant]) -> str:
    return "\n".join(verdict_of(entrants).lines())


def test_a_gain_over_what_a_user_has_is_told_first() -> None:
    entrants = [
        entrant("guided", HALVES, 1.0),
        entrant("plain PyTorch", PLAIN, 1.5),
        entrant("data-parallel", WHOLE, 1.2),
        entrant("pipedream", HALVES, 1.1),
    ]
    verdict = verdict_of(entrants)
    assert (verdict.fastest, verdict.equals, verdict.placement) == (0, (0,), 0)
    assert verdict.best_rival == 3
    assert told(entrants).splitlines() == [
        "guided (1-1) trains a minibatch 1.20× faster than data-parallel (2, updates every 2 "
        "minibatches) (95% CI 1.20–1.20)",
        "guided (1-1) trains a minibatch 1.10× faster than pipedream (1-1) (95% CI 1.10–1.10)",
    ]
    # Where a rival is the fastest, it is compared with the agent's best.
    entrants[0] = entrant("guided", HALVES, 1.32)
    assert "pipedream (1-1) trains a minibatch 1.20× faster than guided (1-1)" in told(entrants)


def test_below_three_percent_the_simplest_is_named() -> None:
    entrants = [
        entrant("guided", THIRDS, 1.0),
        entrant("guided", HALVES, 1.01),
        entrant("plain PyTorch", PLAIN, 1.02),
        entrant("data-parallel", WHOLE, 1.2),
    ]
    verdict = verdict_of(entrants)
    assert verdict.equals == (2, 1, 0)
    assert verdict.placement == 1, "the simplest of the placements as good as the best"
    first, second, *others = told(entrants).splitlines()
    assert first.startswith("no significant difference: guided (1-1-1) trains a minibatch 1.02×")
    assert second.startswith("use plain PyTorch")
    assert others == [
        "not shown to be slower than any other, the simplest first: plain PyTorch (2 threads); "
        "guided (1-1); guided (1-1-1)"
    ]


def test_undecided_is_no_gain_however_large_the_ratio() -> None:
    seconds = [1.0, 1.2, 0.8, 1.1, 0.9]
    rival = [1.5, 0.9, 1.3, 0.8, 1.4]
    entrants = [entrant("guided", HALVES, seconds), entrant("data-parallel", WHOLE, rival)]
    verdict = verdict_of(entrants)
    assert told(entrants).startswith("no significant difference: guided")
    assert verdict.placement == 1, "data parallelism has fewer stages and no staleness"


def test_too_few_rounds_and_failures_are_told() -> None:
    two = [entrant("guided", HALVES, [1.0, 1.0]), entrant("plain PyTorch", PLAIN, [2.0, 2.1])]
    assert verdict_of(two).equals == (0,)
    assert "2.05× faster than plain PyTorch (2 threads), in too few rounds" in told(two)
    alone = [entrant("guided", HALVES, 1.0), entrant("plain PyTorch", PLAIN, ())]
    assert "no rival could be measured" in told(alone)
    rivals = [entrant("guided", HALVES, ()), entrant("plain PyTorch", PLAIN, 1.0)]
    assert "nothing that an agent found could be measured" in told(rivals)
    assert verdict_of(rivals).placement is None
    assert judged([entrant("plain PyTorch", PLAIN, ())]) is None
    assert judged([]) is None


def test_what_is_exported_is_not_shown_to_be_slower_than_another() -> None:
    """The winner's rounds vary too much to tell it from the simplest; another's do not."""
    noisy, steady, simple = [0.6, 1.3, 0.9, 1.0, 0.6], [1.0, 1.01, 1.0, 1.01, 1.0], [1.16] * 5
    entrants = [
        entrant("guided", THIRDS, noisy),
        entrant("guided", THIRDS, steady),
        entrant("guided", HALVES, simple),
    ]
    verdict = verdict_of(entrants)
    assert verdict.fastest == 0
    assert verdict.placement in (0, 1)
    # What the race has dropped was shown to be slower, however little a few rounds tell.
    dropped = [*entrants[:2], entrant("guided", HALVES, [1.6, 0.9, 1.9])]
    assert 2 not in verdict_of(dropped).equals


KINDS = [PLAIN, WHOLE, FLUSHED, HALVES, THIRDS]
NAMES = ["guided", "guided, pipedream", "pipedream", "gpipe"]
entrants_of_all_kinds = st.lists(
    st.builds(
        lambda name, kind, rounds: entrant(NAMES[name], KINDS[kind], rounds),
        st.integers(0, 3),
        st.integers(0, 4),
        st.lists(st.floats(0.5, 2.0), max_size=7),
    ),
    max_size=7,
)


@given(entrants_of_all_kinds)
def test_a_verdict_is_consistent(entrants: list[Entrant]) -> None:
    verdict = judged(entrants)
    assert (verdict is None) == (not any(costs for _, costs in entrants))
    if verdict is None:
        return
    lines = list(verdict.lines())
    assert all(lines)
    assert verdict.fastest in verdict.equals
    assert all(entrants[index][1] for index in verdict.equals)
    simplest = entrants[verdict.equals[0]][0].simplicity
    assert all(simplest <= entrants[index][0].simplicity for index in verdict.equals)
    assert any(line.startswith("use plain PyTorch") for line in lines) == (
        simplest == PLAIN.simplicity
    )
    placed = [i for i, (one, costs) in enumerate(entrants) if costs and one.placement]
    assert (verdict.placement is None) == (not placed)
    assert verdict.placement is None or verdict.placement in placed


def raced(
    seconds: Sequence[float], learned: int, noise: float, seed: int
) -> tuple[str, int | None]:
    """Which side alone is not shown to be slower, and what is exported."""
    draw = random.Random(seed)

    def measure(index: int, long: bool) -> float:
        return seconds[index] * draw.lognormvariate(0, noise)

    found = race(len(seconds), measure)
    entrants = [
        entrant("guided" if index < learned else "pipedream", HALVES, values)
        for index, values in enumerate(found)
    ]
    verdict = verdict_of(entrants)
    sides = {"agent" if is_learned(entrants[index][0]) else "rivals" for index in verdict.equals}
    return sides.pop() if len(sides) == 1 else "", verdict.placement


def test_a_gain_is_seldom_claimed_where_there_is_none_and_ten_percent_are_found() -> None:
    """Four of an agent's and six rivals, all as fast; then as fast as these seconds: 50 races."""
    ahead = [raced([1.0] * 10, 4, 0.05, seed)[0] for seed in range(50)]
    assert max(ahead.count("agent"), ahead.count("rivals")) <= 3
    seconds = [1.0, 1.01, 1.05, 1.0, 1.1, 1.5, 1.2]
    found = [raced(seconds, 4, 0.03, seed) for seed in range(50)]
    assert sum(ahead == "agent" for ahead, _ in found) >= 43
    assert {placement for ahead, placement in found if ahead == "agent"} <= {0, 1, 2, 3}
