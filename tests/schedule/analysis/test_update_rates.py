"""Learning rates of updates: a table by minibatch, and PipeMare's rescheduling (T1)."""

from __future__ import annotations

import pytest

from drlpp.schedule.analysis.update_rates import update_rates
from drlpp.schedule.method import Method
from drlpp.schedule.pipeline import Pipeline

STRAIGHT = Pipeline.straight(1, 1, 1, 1)
T1 = Method(policy="pipemare", annealing_minibatches=8)


def test_t1_is_pipemares_equation_4() -> None:
    """α_{k,i} = α_{k,base} / τ_i^{p_k}, p_k = 1 − min(k/K, 1), τ = 4, 3, 2, 1."""
    schedule = T1.schedule_for(STRAIGHT, 12)
    base = [0.1 + 0.01 * k for k in range(12)]
    for rank, delay in enumerate([4, 3, 2, 1]):
        wanted = [base[k] / delay ** (1 - min(k / 8, 1)) for k in range(12)]
        assert update_rates(schedule, rank, T1, base) == pytest.approx(wanted, rel=1e-12)


def test_t1_goes_on_in_the_next_run_and_leaves_synchronous_ones_alone() -> None:
    schedule = T1.schedule_for(STRAIGHT, 4)
    later = update_rates(schedule, 0, T1, [0.5], asynchronous_before=4)
    assert later == pytest.approx([0.5 / 4 ** (1 - k / 8) for k in range(4, 8)])
    flushing = T1.synchronous(STRAIGHT)
    flushed = flushing.schedule_for(STRAIGHT, 4)
    assert update_rates(flushed, 0, flushing, [0.5]) == [0.5] * 4


def test_t1s_delay_is_that_of_the_steady_state_however_short_the_run() -> None:
    first = [update_rates(T1.schedule_for(STRAIGHT, n), 0, T1, [1.0])[0] for n in (1, 2, 3, 9)]
    assert first == [0.25] * 4


def test_an_update_of_several_minibatches_takes_the_rate_of_the_last() -> None:
    method = Method(policy="vanilla", accumulate=2)
    schedule = method.schedule_for(Pipeline.straight(3, 1), 6)
    rates = [1.0, 2.0, 3.0, 4.0, 5.0]
    assert update_rates(schedule, 0, method, rates) == [4.0, 5.0]
    assert update_rates(schedule, 3, method, rates) == [2.0, 4.0, 5.0]
