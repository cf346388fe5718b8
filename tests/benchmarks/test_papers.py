"""Tables of the papers: what is counted, which runs are made, and how claims are decided."""

import math

import pytest

from benchmarks.deep_models import DigitsCNN
from benchmarks.papers import (
    drl_pp,
    pipedream_clusters,
    pipemare,
    pipeoptim,
    pipeoptim_memory,
)
from benchmarks.papers.claims import NOT_DECIDED, NOT_YET, judged, judged_seconds
from drlpp.schedule.analysis.weight_versions import stage_delays
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline

GPIPE = Method(schedule="gpipe", policy="sync")


# What is counted


@pytest.mark.parametrize(("stages", "microbatches"), [(2, 2), (4, 2), (8, 4), (5, 1)])
def test_utilisation_is_the_paper_s(stages: int, microbatches: int) -> None:
    flushed = pipemare.minibatch_seconds(GPIPE, stages, microbatches)
    assert 1 / flushed == pytest.approx(microbatches / (microbatches + stages - 1))
    assert pipemare.minibatch_seconds(Method(policy="stash"), stages) == pytest.approx(1)


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_gradients_are_as_late_as_in_the_paper_s_pipeline(stages: int) -> None:
    late = stage_delays(Pipeline.straight(*[1] * stages), Method(policy="vanilla"))
    papers = [
        math.ceil((2 * (stages - i) + 1) / pipemare.MICROBATCHES) for i in range(1, stages + 1)
    ]
    assert [delay + 1 for delay in late] == papers


def test_a_warm_up_takes_gpipe_s_time_while_it_lasts() -> None:
    warm = pipemare.rows(60)["T1+T2+W"]
    assert warm.synchronous == 10
    # Pipemare §4: the utilisation is amortised over the epochs. Here N = 2 and P = 4.
    factor = pipemare.time_factor(warm, 4, 40.0)
    assert factor == pytest.approx((30 + 10 * 5 / 2) / 40)
    assert pipemare.time_factor(warm, 4, 5.0) == pytest.approx(5 / 2)
    assert pipemare.time_factor(pipemare.rows(60)["T1+T2"], 4, 40.0) == pytest.approx(1)


def test_weights_and_optimizer_relative_to_gpipe() -> None:
    rows = pipemare.rows(100)
    held = {name: pipemare.weight_memory("digits", row, 4) for name, row in rows.items()}
    assert held["GPipe"] == held["neither"] == held["T1"] == 1
    # Weights, gradients and momentum; δ, and W_{t+s} during a backward.
    assert held["T2"] == held["T1+T2+W"] == pytest.approx(5 / 3)
    weights, plan = pipemare._weights("digits", 4)
    assert plan.delays == (3, 2, 1, 0)
    assert sum(weights) == 4 * sum(weight.numel() for weight in DigitsCNN().parameters())
    more = sum(weight * late for weight, late in zip(weights, (3, 2, 1, 0), strict=True))
    assert held["PipeDream"] == pytest.approx(1 + more / (3 * sum(weights)))


@pytest.mark.slow
def test_the_runtime_holds_the_versions_of_table_ii() -> None:
    found = list(pipeoptim_memory.STUDY.run(*pipeoptim_memory.STUDY.cases(None, short=True)).stages)
    assert len(found) == len(pipeoptim.METHODS) * pipeoptim.STAGES
    formula = [pipeoptim_memory.formula_versions(m.method, m.stage) for m in found]
    assert [m.versions for m in found] == formula
    first = {m.method: m.versions for m in found if m.stage == 0}
    assert first == {
        name: {"PipeDream": 4, "GPipe": 1, "vanilla": 1}.get(name, 2) for name in first
    }


# How claims are decided


def test_claims_are_decided_by_intervals() -> None:
    slow, quick = {0: 2.0, 1: 2.1, 2: 2.0 / 1.05}, {0: 1.0, 1: 1.02, 2: 1 / 1.02}
    claim = judged_seconds("sooner", "here", quick, slow)
    assert claim.verdict == "holds"
    assert claim.figures.startswith("2.00×")
    assert judged_seconds("sooner", "here", slow, quick).verdict == "does not hold"
    given_up = judged_seconds("sooner", "here", quick, slow, first_is_least=True)
    assert (given_up.verdict, given_up.figures[:13]) == (NOT_DECIDED, "at most 2.00×")
    late = judged_seconds("sooner", "here", slow, quick, first_is_least=True)
    assert late.verdict == "does not hold"
    mixed = {0: 1.5, 1: 2.6, 2: 1.7}
    assert judged_seconds("sooner", "here", mixed, slow).verdict == "within noise"
    assert judged_seconds("alike", "here", slow, slow, 0.1).verdict == "holds"
    assert judged_seconds("alike", "here", quick, slow, 0.1).verdict == "does not hold"
    assert judged("better", "here", {0: 1.0}, {0: 0.5}).verdict == NOT_YET


# PipeDream


def test_published_costs_have_pipedreams_placement_on_its_cluster() -> None:
    """The paper: straight, 1.5 times as fast as data parallelism."""
    row = pipedream_clusters.STUDY.run(*pipedream_clusters.STUDY.cases(None, short=True))
    assert row.pipedream.configuration == row.found.configuration == "1-1-1-1"
    assert 1.3 < row.data_parallel.seconds / row.found.seconds < 1.7


# DRL-PP


def test_published_costs_have_the_papers_placement_on_slow_links_alone() -> None:
    slow, fast = (
        drl_pp.STUDY.run(drl_pp.Case(model="alexnet", gigabytes=gigabytes, judged=60))
        for gigabytes in (0.5, 16.0)
    )
    assert slow.found.configuration == slow.pipedream.configuration == "3-1"
    assert slow.data_parallel.seconds > 5 * slow.found.seconds
    assert fast.found.configuration == fast.data_parallel.configuration == "4"
    for case in (slow, fast):
        others = (case.data_parallel, case.gpipe, case.pipedream)
        assert case.found.seconds <= min(placed.seconds for placed in others) * (1 + 1e-9)
