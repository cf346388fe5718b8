"""Whoever breaks the arithmetic of a method, in workers, reference or schedule, is noticed.

Every mutation makes one sentence about a method untrue, and every comparison that it names has to
see it, by a hundred thousand times more than what rounding may make of what is right. The rows are
in `tests/support/mutations/`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from drlpp.errors import InvalidInput
from drlpp.schedule import schedule, ties
from tests.support.mutations import (
    chained,
    microbatches,
    muon,
    optimizers,
    split_backwards,
    tied,
)
from tests.support.mutations.mutation import Comparison, Mutation

ROUNDING, NOTICED = 1e-9, 1e-4

COMPARISONS: dict[str, Comparison] = tied.COMPARISONS | chained.COMPARISONS | muon.COMPARISONS
MUTATIONS: list[Mutation] = [
    *tied.MUTATIONS,
    *microbatches.MUTATIONS,
    *optimizers.MUTATIONS,
    *muon.MUTATIONS,
    *split_backwards.MUTATIONS,
]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    # As in a worker: the others of a machine compute as well.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("mutation", "comparison"),
    [
        *(pytest.param(None, name, id=f"nothing-{name}") for name in COMPARISONS),
        *(
            pytest.param(
                mutation,
                name,
                id=f"{mutation.name}-{name}",
                marks=() if name == fast else pytest.mark.slow,
            )
            for number, mutation in enumerate(MUTATIONS)
            for fast in [mutation.noticed_by[number % len(mutation.noticed_by)]]
            for name in mutation.noticed_by
        ),
    ],
)
def test_a_comparison_holds_until_something_is_broken(
    monkeypatch: pytest.MonkeyPatch, mutation: Mutation | None, comparison: str
) -> None:
    if mutation is None:
        assert COMPARISONS[comparison]() < ROUNDING
    else:
        mutation.how(monkeypatch)
        assert COMPARISONS[comparison]() > NOTICED


def test_every_comparison_can_fail() -> None:
    assert {name for mutation in MUTATIONS for name in mutation.noticed_by} == COMPARISONS.keys()


def test_a_root_that_is_not_the_latest_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the last stage gradients of the others are not there in time."""

    ties_of = ties.ties_of

    def by_the_last(*given: Any) -> tuple[ties.Tie, ...]:
        return tuple(replace(tie, root=tie.stages[-1]) for tie in ties_of(*given))

    for module in (ties, schedule):
        monkeypatch.setattr(module, "ties_of", by_the_last)
    with pytest.raises(InvalidInput, match="share a parameter"):
        tied.STASH.on_workers()
