"""The shape of a placement: how many minibatches its stages have in flight."""

from __future__ import annotations

from drlpp.schedule.pipeline import Pipeline, StageEdge


def test_noam() -> None:
    """⌈workers / replicas of the input stage⌉ (pipedream §3.2)."""
    assert Pipeline.straight(1, 1, 1, 1).in_flight() == (4, 3, 2, 1)
    assert Pipeline.straight(2, 1).in_flight()[0] == 2
    assert Pipeline.straight(15, 1).in_flight()[0] == 2
    assert Pipeline.straight(3, 2, 1).in_flight()[0] == 2
    assert Pipeline.straight(4).in_flight() == (1,)


def test_branches_take_the_widest_branch_into_account() -> None:
    """0 → 1 → 3 and 0 → 2 → 3, where stage 2 has three replicas."""
    edges = tuple(StageEdge(a, b) for a, b in [(0, 1), (0, 2), (1, 3), (2, 3)])
    pipeline = Pipeline(((0,), (1,), (2, 3, 4), (5,)), edges)
    assert pipeline.in_flight() == (5, 2, 2, 1)


def test_ranks_of_many_stages_that_all_exchange_tensors() -> None:
    """There are 2⁶² paths to the last of them."""
    pairs = [(source, target, True) for target in range(64) for source in range(target)]
    pipeline = Pipeline.connecting(((stage,) for stage in range(64)), pairs)
    assert [pipeline.rank(stage) for stage in range(64)] == list(range(64))
