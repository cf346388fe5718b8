"""What a race says: gains are claimed where there are some, and the simplest of equals is named."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from drlpp.racing.race import RaceRules, race
from drlpp.racing.verdict import (
    Entrant,
    Simplicity,
    best_rival,
    judge,
    verdict_lines,
)

PLAIN = Simplicity(pipeline=False)
WHOLE = Simplicity(pipeline=True, workers=2)
HALVES = Simplicity(pipeline=True, stages=2, stale=True, workers=2)
FLUSHED = Simplicity(pipeline=True, stages=2, workers=2)
THIRDS = Simplicity(pipeline=True, stages=3, stale=True, workers=3)


def entrant(name: str, simplicity: Simplicity, seconds: Sequence[float] | float) -> Entrant:
    """Found by an agent if the name is; a number is the seconds of five rounds without noise."""
    names = tuple(name.split("+"))
    return Entrant(
        found_by=names,
        configuration=f"{simplicity.stages} stages" if simplicity.pipeline else "2 threads",
        rival=names != ("guided",),
        learned="guided" in names,
        today="plain" in names or "data-parallel" in names,
        simplicity=simplicity,
        costs=(seconds,) * 5 if isinstance(seconds, float) else tuple(seconds),
    )


def told(entrants: Sequence[Entrant]) -> str:
    verdict = judge(entrants)
    assert verdict is not None
    return "\n".join(verdict_lines(verdict, entrants))


def test_a_gain_over_what_a_user_has_is_told_first() -> None:
    entrants = [
        entrant("guided", HALVES, 1.0),
        entrant("plain", PLAIN, 1.5),
        entrant("data-parallel", WHOLE, 1.2),
        entrant("exact", HALVES, 1.1),
    ]
    verdict = judge(entrants)
    assert verdict is not None
    assert (verdict.fastest, verdict.equals, verdict.placement) == (0, (0,), 0)
    assert best_rival(entrants) == 3
    assert told(entrants).splitlines() == [
        "guided (2 stages) trains a minibatch 1.20× faster than data-parallel (1 stages) "
        "(95% CI 1.20–1.20)",
        "guided (2 stages) trains a minibatch 1.10× faster than exact (2 stages) "
        "(95% CI 1.10–1.10)",
    ]


def test_below_three_percent_the_simplest_is_named() -> None:
    entrants = [
        entrant("guided", THIRDS, 1.0),
        entrant("guided", HALVES, 1.01),
        entrant("plain", PLAIN, 1.02),
        entrant("data-parallel", WHOLE, 1.2),
    ]
    verdict = judge(entrants)
    assert verdict is not None
    assert verdict.equals == (2, 1, 0)
    assert verdict.placement == 1, "the simplest of the placements as good as the best"
    first, second, *others = told(entrants).splitlines()
    assert first.startswith("no significant difference: guided (3 stages) trains a minibatch 1.02×")
    assert second.startswith("use plain PyTorch")
    assert others == [
        "not shown to be slower than any other, the simplest first: plain (2 threads); guided "
        "(2 stages); guided (3 stages)",
    ]


def test_undecided_is_no_gain_however_large_the_ratio() -> None:
    seconds = [1.0, 1.2, 0.8, 1.1, 0.9]
    rival = [1.5, 0.9, 1.3, 0.8, 1.4]
    entrants = [entrant("guided", HALVES, seconds), entrant("data-parallel", WHOLE, rival)]
    verdict = judge(entrants)
    assert verdict is not None
    assert told(entrants).startswith("no significant difference: guided")
    assert verdict.placement == 1, "data parallelism has fewer stages and no staleness"


def test_too_few_rounds_and_failures_are_told() -> None:
    two = [entrant("guided", HALVES, [1.0, 1.0]), entrant("plain", PLAIN, [2.0, 2.1])]
    verdict = judge(two)
    assert verdict is not None
    assert verdict.equals == (0,)
    assert "2.05× faster than plain (2 threads), in too few rounds" in told(two)
    alone = [entrant("guided", HALVES, 1.0), entrant("plain", PLAIN, ())]
    assert "no rival could be measured" in told(alone)
    rivals = [entrant("guided", HALVES, ()), entrant("plain", PLAIN, 1.0)]
    assert "nothing that an agent found could be measured" in told(rivals)
    verdict = judge(rivals)
    assert verdict is not None
    assert verdict.placement is None
    assert judge([entrant("plain", PLAIN, ())]) is None
    assert judge([]) is None


def test_what_is_exported_is_not_shown_to_be_slower_than_another() -> None:
    """The winner's rounds vary too much to tell it from the simplest; another's do not."""
    noisy, steady, simple = [0.6, 1.3, 0.9, 1.0, 0.6], [1.0, 1.01, 1.0, 1.01, 1.0], [1.16] * 5
    entrants = [
        entrant("guided", THIRDS, noisy),
        entrant("guided", THIRDS, steady),
        entrant("guided", HALVES, simple),
    ]
    verdict = judge(entrants)
    assert verdict is not None
    assert verdict.fastest == 0
    assert verdict.placement in (0, 1)
    # What the race has dropped was shown to be slower, however little a few rounds tell.
    dropped = [*entrants[:2], entrant("guided", HALVES, [1.6, 0.9, 1.9])]
    verdict = judge(dropped)
    assert verdict is not None
    assert 2 not in verdict.equals


simplicities = st.sampled_from([PLAIN, WHOLE, FLUSHED, HALVES, THIRDS])
rounds = st.lists(st.floats(0.5, 2.0), max_size=7)
entrants_of_all_kinds = st.lists(
    st.builds(
        entrant,
        st.sampled_from(["guided", "guided+exact", "exact", "gpipe"]),
        simplicities,
        rounds,
    ),
    max_size=7,
)


@given(entrants_of_all_kinds)
def test_a_verdict_is_consistent(entrants: list[Entrant]) -> None:
    verdict = judge(entrants)
    assert (verdict is None) == (not any(one.costs for one in entrants))
    if verdict is None:
        return
    lines = list(verdict_lines(verdict, entrants))
    assert all(lines)
    assert verdict.fastest in verdict.equals
    assert all(entrants[index].costs for index in verdict.equals)
    simplest = entrants[verdict.equals[0]].simplicity
    assert all(simplest <= entrants[index].simplicity for index in verdict.equals)
    assert any(line.startswith("use plain PyTorch") for line in lines) == (simplest == PLAIN)
    placed = [i for i, one in enumerate(entrants) if one.costs and one.simplicity.pipeline]
    assert (verdict.placement is None) == (not placed)
    assert verdict.placement is None or verdict.placement in placed


def raced(
    seconds: Sequence[float], learned: int, noise: float, seed: int
) -> tuple[str, int | None]:
    """Which side alone is not shown to be slower, and what is exported."""
    draw = random.Random(seed)

    def measure(index: int, *, long: bool) -> float:
        return seconds[index] * draw.lognormvariate(0, noise)

    found = race(len(seconds), measure, RaceRules())
    entrants = [
        entrant("guided" if index < learned else "exact", HALVES, values)
        for index, values in enumerate(found)
    ]
    verdict = judge(entrants)
    assert verdict is not None
    sides = {"agent" if entrants[index].learned else "rivals" for index in verdict.equals}
    return sides.pop() if len(sides) == 1 else "", verdict.placement


def test_a_gain_is_seldom_claimed_where_there_is_none_and_ten_percent_are_found() -> None:
    """Four of an agent's and six rivals, all as fast; then as fast as these seconds: 100 races."""
    ahead = [raced([1.0] * 10, 4, 0.05, seed)[0] for seed in range(100)]
    assert ahead.count("agent") <= 5
    assert ahead.count("rivals") <= 5
    seconds = [1.0, 1.01, 1.05, 1.0, 1.1, 1.5, 1.2]
    found = [raced(seconds, 4, 0.03, seed) for seed in range(100)]
    assert sum(ahead == "agent" for ahead, _ in found) >= 85
    assert {placement for ahead, placement in found if ahead == "agent"} <= {0, 1, 2, 3}
