"""One number for all links against one for each: what is compared, and how it is told."""

from __future__ import annotations

import random

import pytest

from benchmarks.in_flight.searched import OneForAll, Row, clusters, compare, summary, table_of
from drlpp.planners import Space, Vary
from drlpp.schedule.method import Method

BOTH = frozenset({Vary.DEPTH, Vary.RECOMPUTE})


def row(one: tuple[float | None, ...], each: tuple[float | None, ...], question: str) -> Row:
    return Row("chain", "1 Gbit/s", question, one, each, "")


def test_one_search_has_lists_and_the_other_none() -> None:
    for kind in (OneForAll, Space):
        space, draw, method = kind(Method(), BOTH), random.Random(0), Method()
        known = set()
        for _ in range(100):
            method = space.changed(method, 4, draw)
            known.add(method.has_lists)
        assert known == ({False} if kind is OneForAll else {False, True})


def test_gains_are_told_by_seed_and_of_the_best() -> None:
    rows = [
        row((10.0, 8.0), (9.0, 8.0), "depth"),
        row((10.0, None), (5.0, None), "depth, not staler"),
        row((None, None), (None, 3.0), "depth and recomputation, little memory"),
    ]
    (told,) = table_of(rows).to_dict("records")
    assert told == {
        "graph": "chain",
        "links": "1 Gbit/s",
        "depth": "0.0 (0.0 to 10.0)",
        "depth, not staler": "50.0 (50.0 to 50.0)",
        "depth and recomputation, little memory": "fits with one for each only",
    }
    assert summary(rows) == (
        "depth: the best of all seeds 0.0% faster in the median of 1, by more than 1% in 0, slower "
        "by more than 1% in 0, single searches 5.0% faster in the median of 2, by more than 1% in "
        "1, slower by more than 1% in 0; depth, not staler: the best of all seeds 50.0% faster in "
        "the median of 1, by more than 1% in 1, slower by more than 1% in 0, single searches 50.0% "
        "faster in the median of 1, by more than 1% in 1, slower by more than 1% in 0."
    )


@pytest.mark.slow
def test_a_small_comparison() -> None:
    rows = list(compare(["vgg16"], evaluations=10, seeds=1))
    assert [row.links for row in rows] == [name for name in clusters() for _ in range(3)]
    # So few candidates are what planners propose, from which both begin.
    assert all(len(row.one) == len(row.each) == 1 for row in rows)
