"""What a race says: gains are claimed where there are some, and the simplest of equals is named."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drlpp.comparison.race import RaceRules, race
from drlpp.comparison.verdict import Entrant, Finding, Simplicity, best_rival, judge, verdict_lines
from drlpp.placement.measurement import Measurement

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
        simplicity=simplicity,
        seconds=(seconds,) * 5 if isinstance(seconds, float) else tuple(seconds),
    )


def told(entrants: Sequence[Entrant]) -> str:
    verdict = judge(entrants)
    assert verdict is not None
    return "\n".join(verdict_lines(verdict, entrants))


def test_a_gain_is_told_over_the_best_rival() -> None:
    entrants = [
        entrant("guided", HALVES, 1.0),
        entrant("plain", PLAIN, 1.1),
        entrant("data-parallel", WHOLE, 1.5),
        entrant("gpipe", FLUSHED, 3.0),
    ]
    verdict = judge(entrants)
    assert verdict is not None
    assert verdict.finding is Finding.GAIN
    assert (verdict.equals, verdict.placement) == ((0,), 0)
    assert best_rival(entrants) == 1
    assert told(entrants) == (
        "1.10× (1.10–1.10, over 99.9% confidence) over the best rival, plain (2 threads): "
        "guided (2 stages)"
    )


def test_below_three_percent_the_simplest_is_named() -> None:
    entrants = [
        entrant("guided", THIRDS, 1.0),
        entrant("guided", HALVES, 1.01),
        entrant("plain", PLAIN, 1.02),
        entrant("data-parallel", WHOLE, 1.2),
    ]
    verdict = judge(entrants)
    assert verdict is not None
    assert verdict.finding is Finding.EQUAL
    assert verdict.equals == (2, 1, 0)
    assert verdict.placement == 1, "the simplest of the placements as good as the best"
    assert told(entrants).splitlines() == [
        "no difference worth having: guided (3 stages) is 1.02× (1.02–1.02, over 99.9% "
        "confidence) over the best rival, plain (2 threads)",
        "the simplest of the equals is plain (2 threads); not shown to be slower: guided "
        "(2 stages), guided (3 stages)",
        "train with plain PyTorch: a pipeline is not worth having here",
    ]


def test_undecided_is_no_gain_however_large_the_ratio() -> None:
    seconds = [1.0, 1.2, 0.8, 1.1, 0.9]
    rival = [1.5, 0.9, 1.3, 0.8, 1.4]
    entrants = [entrant("guided", HALVES, seconds), entrant("data-parallel", WHOLE, rival)]
    verdict = judge(entrants)
    assert verdict is not None
    assert verdict.lead is not None
    assert verdict.lead.ratio > 1.1
    assert verdict.finding is Finding.EQUAL
    assert verdict.placement == 1, "data parallelism has fewer stages and no staleness"


def test_a_rival_that_wins_is_told_first() -> None:
    entrants = [
        entrant("guided", HALVES, 1.2),
        entrant("guided", THIRDS, 1.3),
        entrant("plain", PLAIN, 1.0),
    ]
    verdict = judge(entrants)
    assert verdict is not None
    assert verdict.finding is Finding.LOSS
    assert verdict.placement == 0, "exported all the same"
    assert told(entrants).splitlines() == [
        "nothing gained: plain (2 threads) is 1.20× (1.20–1.20, over 99.9% confidence) over the "
        "best that an agent found, guided (2 stages)",
        "train with plain PyTorch: a pipeline is not worth having here",
    ]


def test_what_a_rival_found_as_well_is_no_gain() -> None:
    entrants = [entrant("guided+exact", HALVES, 1.0), entrant("plain", PLAIN, 1.5)]
    verdict = judge(entrants)
    assert verdict is not None
    assert verdict.finding is Finding.SAME
    assert told(entrants).startswith("1.00× over the best rival: guided and exact (2 stages)")
    beaten = [entrant("guided+exact", HALVES, 1.5), entrant("plain", PLAIN, 1.0)]
    assert "over the best that an agent found, guided and exact (2 stages)" in told(beaten)


def test_too_few_rounds_and_failures_are_told() -> None:
    two = [entrant("guided", HALVES, [1.0, 1.0]), entrant("plain", PLAIN, [2.0, 2.1])]
    verdict = judge(two)
    assert verdict is not None
    assert verdict.finding is Finding.TOO_FEW_ROUNDS
    assert verdict.equals == (0,)
    assert "2.05× over the best rival, plain (2 threads), in too few rounds" in told(two)
    alone = [entrant("guided", HALVES, 1.0), entrant("plain", PLAIN, ())]
    assert "no rival could be measured" in told(alone)
    rivals = [entrant("guided", HALVES, ()), entrant("plain", PLAIN, 1.0)]
    assert "nothing that an agent found could be measured" in told(rivals)
    verdict = judge(rivals)
    assert verdict is not None
    assert verdict.placement is None
    assert judge([entrant("plain", PLAIN, ())]) is None
    assert judge([]) is None


def test_simple_is_plain_pytorch_then_few_stages_then_no_staleness_then_few_workers() -> None:
    ordered = [
        PLAIN,
        Simplicity(pipeline=True),
        Simplicity(pipeline=True, workers=4),
        FLUSHED,
        Simplicity(pipeline=True, stages=2, workers=2, microbatches=4),
        Simplicity(pipeline=True, stages=2, workers=3),
        HALVES,
        Simplicity(pipeline=True, stages=2, stale=True, workers=3),
        Simplicity(pipeline=True, stages=3, workers=3),
    ]
    shuffled = list(ordered)
    random.Random(1).shuffle(shuffled)
    assert sorted(shuffled) == ordered


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
    assert (verdict is None) == (not any(one.seconds for one in entrants))
    if verdict is None:
        return
    lines = list(verdict_lines(verdict, entrants))
    assert all(lines)
    assert verdict.fastest in verdict.equals
    assert all(entrants[index].seconds for index in verdict.equals)
    simplest = entrants[verdict.equals[0]].simplicity
    assert all(simplest <= entrants[index].simplicity for index in verdict.equals)
    assert ("plain PyTorch: a pipeline is not" in lines[-1]) == (simplest == PLAIN)
    placed = [i for i, one in enumerate(entrants) if one.seconds and one.simplicity.pipeline]
    assert (verdict.placement is None) == (not placed)
    assert verdict.placement is None or verdict.placement in placed
    if verdict.finding is Finding.GAIN:
        assert not any(entrants[index].rival for index in verdict.equals)
        assert verdict.lead is not None
        assert verdict.lead.ratio >= 1.03
        assert verdict.lead.probability >= 0.9
        assert entrants[verdict.lead.rival].rival
    if verdict.finding is Finding.LOSS:
        assert not any(entrants[index].learned for index in verdict.equals)


def raced(
    seconds: Sequence[float], learned: int, noise: float, seed: int
) -> tuple[Finding, int | None]:
    """The finding of a simulated race, and who is exported; the first are an agent's."""
    draw = random.Random(seed)
    found: list[list[float]] = [[] for _ in seconds]

    def measure(index: int, *, long: bool) -> Measurement:
        value = seconds[index] * draw.lognormvariate(0, noise)
        found[index].append(value)
        return Measurement(
            seconds_per_minibatch=value,
            median_seconds=value,
            standard_deviation_seconds=0.0,
            minibatches=1,
        )

    race(len(seconds), measure, RaceRules())
    entrants = [
        entrant("guided" if index < learned else "exact", HALVES, values)
        for index, values in enumerate(found)
    ]
    verdict = judge(entrants)
    assert verdict is not None
    return verdict.finding, verdict.placement


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_a_gain_is_seldom_claimed_where_there_is_none(noise: float) -> None:
    """Four of an agent's and six rivals, all as fast: 400 races."""
    findings = [raced([1.0] * 10, 4, noise, seed)[0] for seed in range(400)]
    assert findings.count(Finding.GAIN) <= 0.05 * 400
    assert findings.count(Finding.LOSS) <= 0.05 * 400


def test_a_rival_that_is_faster_is_seldom_overlooked() -> None:
    """The best rival is 10% faster than all that the agent found."""
    seconds = [1.0, 1.01, 1.05, 1.0, 0.9, 1.5, 1.2]
    findings = [raced(seconds, 4, 0.03, seed)[0] for seed in range(200)]
    assert findings.count(Finding.GAIN) == 0
    assert findings.count(Finding.LOSS) >= 0.9 * 200


def test_a_gain_of_ten_percent_is_found() -> None:
    seconds = [1.0, 1.01, 1.05, 1.0, 1.1, 1.5, 1.2]
    found = [raced(seconds, 4, 0.03, seed) for seed in range(200)]
    assert sum(finding is Finding.GAIN for finding, _ in found) >= 0.85 * 200
    exported = [placement for finding, placement in found if finding is Finding.GAIN]
    assert set(exported) <= {0, 1, 2, 3}
