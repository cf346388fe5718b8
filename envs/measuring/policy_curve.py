"""What a policy imagined beside a search, read from TensorBoard's files of a run."""

from __future__ import annotations

from pathlib import Path

TAGS = "policy/mean_reward", "policy/best_seconds", "policy/search_seconds"
"""Scalars, a point for each round in which the policy was trained: of what it drew, of the best of
that, and the least that the search expected anything to take; by costs as they were known."""


def policy_curve(folder: Path) -> list[tuple[float, ...]]:
    """Return how many placements were measured, and the scalars, of every round.

    It is empty where no policy took part, or the files are gone.
    """
    if not any(folder.glob("events.*")):
        return []
    from tensorboard.backend.event_processing.event_accumulator import SCALARS, EventAccumulator

    events = EventAccumulator(str(folder), {SCALARS: 0}).Reload()
    if not set(TAGS) <= set(events.Tags()[SCALARS]):
        return []
    points = [{event.step: event.value for event in events.Scalars(tag)} for tag in TAGS]
    # A run that was killed may have written some of a round's.
    steps = sorted(set.intersection(*map(set, points)))
    return [(step, *(values[step] for values in points)) for step in steps]
