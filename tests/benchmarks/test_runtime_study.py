"""The study of the runtime's speed at its smallest: what is compared, and that it is equal."""

import pytest

from benchmarks.models import MODELS, SMALL_MODELS, placement_of, reference
from benchmarks.runtime import (
    DEEPER,
    NUMERICS_GOAL,
    PIPEOPTIM,
    STUDY,
    VANILLA,
    Case,
    Timed,
    Way,
    check_numerics,
    contenders_of,
    verdicts_of,
)
from drlpp.capturing.capture import capture
from drlpp.errors import RunFailure
from drlpp.torch_versions import older_than

EVEN = Case(model="feed_forwards", blocks=(4, 4), replicas=(1, 1), microbatches=(2,))


@pytest.mark.system
def test_all_train_to_the_same_weights_and_are_timed() -> None:
    if older_than("2.13"):
        pytest.skip("the rival's stages and schedules take what torch has since 2.13")
    (case,) = STUDY.cases(None, short=True)
    found = STUDY.run(case)
    assert [way.name for way in found.ways] == [
        VANILLA,
        PIPEOPTIM,
        "1f1b stash",
        DEEPER,
        "gpipe, M = 2",
        "1f1b-flush, M = 2",
        "torch pipelining gpipe, M = 2",
        "torch pipelining 1f1b, M = 2",
        "torch data parallel",
    ]
    assert max(way.difference for way in found.ways) < 1e-5
    # Faster than its busiest worker computes no pipeline can be, but for where the window's edges
    # cut; and no worker has been asleep for nothing.
    assert all(0 < way.busiest_seconds[0] < 2 * way.seconds[0] for way in found.ways)


def test_uneven_stages_are_not_compared_with_schedules_that_flush() -> None:
    uneven = EVEN.model_copy(update={"blocks": (3, 5)})
    assert list(contenders_of(uneven)) == [VANILLA, PIPEOPTIM, DEEPER]


def test_weights_that_differ_end_the_comparison() -> None:
    check_numerics(EVEN, {VANILLA: NUMERICS_GOAL})
    with pytest.raises(RunFailure, match="torch data parallel ends with weights that differ"):
        check_numerics(EVEN, {VANILLA: 0.0, "torch data parallel": 2 * NUMERICS_GOAL})


def test_verdicts_are_medians_of_paired_samples() -> None:
    seconds = {
        VANILLA: (1, (1.0, 2.0, 4.0)),
        PIPEOPTIM: (1, (1.01, 2.06, 4.04)),
        "torch pipelining 1f1b, M = 4": (4, (1.3, 2.4, 4.8)),
    }
    ways = tuple(
        Way(
            name=name,
            microbatches=microbatches,
            seconds=times,
            busiest_seconds=tuple(time / 1.02 for time in times),
            difference=0.0,
        )
        for name, (microbatches, times) in seconds.items()
    )
    row = Timed(case=EVEN, ways=ways, machine="none")
    found = [(v.question, round(v.ratio, 6), v.goal, v.met) for v in verdicts_of(row)]
    assert found == [
        ("over the busiest worker", 1.02, 1.03, True),
        ("over the busiest worker", 1.02, 1.03, True),
        ("cost of predicting", 1.01, 1.025, True),
        # (M + P − 1)/M
        ("faster than flushing", 1.2, 1.25, False),
    ]
    steady, verdicts = STUDY.table([row]).values()
    assert steady["1f1b vanilla is faster by"].tolist() == ["–", "1.010 ×", "1.200 ×"]
    assert verdicts[""].tolist() == ["met", "met", "met", "not met"]


def test_blocks_are_cut_where_a_case_says() -> None:
    captured = capture(reference("convolutions", SMALL_MODELS["convolutions"]))
    placement = placement_of(captured.graph, (3, 1, 4), (1, 2, 1))
    assert placement.configuration == "1-2-1"
    modules = [
        {captured.graph.operators[i].module.split(".")[0] for i in stage.operators}
        for stage in placement.stages
    ]
    assert modules == [{"0", "1", "2"}, {"3"}, {"4", "5", "6", "7"}]
    cases = STUDY.cases(None, short=False)
    assert len(cases) == 12 * len(MODELS)
    assert all(sum(case.blocks) == 8 for case in cases)
