"""A part of a cluster: what accelerators are called there, and back."""

import re

import hypothesis.strategies as st
import pytest
from hypothesis import given

from drlpp.placement.candidate import Candidate
from drlpp.placement.measurement import FailedMeasurement, LinkUsage, Measurement, WorkerUsage
from drlpp.placement.placement import Placement
from drlpp.placement.renumbering import Renumbering
from drlpp.schedule.method import Method
from tests.support.measured import measurement


@st.composite
def parts(draw: st.DrawFn) -> Renumbering:
    of = draw(st.integers(1, 6))
    numbers = draw(st.lists(st.integers(0, of - 1), min_size=1, unique=True))
    return Renumbering(tuple(numbers), of)


@given(parts(), st.data())
def test_there_and_back(part: Renumbering, data: st.DataObject) -> None:
    count = len(part.numbers)
    stages = data.draw(st.lists(st.integers(0, count - 1), min_size=count, max_size=count))
    own = Candidate(Placement.from_assignment(sorted(stages), sorted(stages)), Method())
    whole = part.in_cluster(own)
    for before, after in zip(own.placement.stages, whole.placement.stages, strict=True):
        assert {part.numbers[a] for a in before.accelerators} == set(after.accelerators)
        assert before.operators == after.operators
    assert part.in_part(whole) == own


@given(parts(), st.data())
def test_who_needs_others_is_none_of_the_part(part: Renumbering, data: st.DataObject) -> None:
    used = data.draw(st.sets(st.integers(0, part.of - 1), min_size=1))
    one = Candidate(Placement.straight([1.0] * len(used), sorted(used)), Method())
    assert (part.in_part(one) is None) == bool(used - set(part.numbers))


def numbers(draw: st.DrawFn, of: int) -> tuple[int, ...]:
    """A few, or all but a few, or every other, in their order or shuffled."""
    few = draw(st.sets(st.integers(0, of - 1), min_size=1, max_size=8))
    kinds = [few, set(range(of)) - few or few, set(range(0, of, draw(st.integers(1, 3))))]
    ordered = sorted(draw(st.sampled_from(kinds)))
    return tuple(draw(st.permutations(ordered)) if draw(st.booleans()) else ordered)


@given(st.data())
def test_a_name_is_short_and_another_for_every_part(data: st.DataObject) -> None:
    of = data.draw(st.integers(1, 400))
    one, other = (Renumbering(numbers(data.draw, of), of) for _ in range(2))
    assert (one.name == other.name) == (one == other)
    assert re.fullmatch(r"[0-9a-z.-]+", one.name)
    # A file system takes 255 bytes, and TensorBoard's names have more than this.
    assert len(one.name) <= 60


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ((0, 1), "0-1"),
        ((*range(7), *range(8, 16)), "0-6.8-15"),
        ((2,), "2"),
        ((1, 0), "1.0"),
        ((1, 2, 3, 0, 5), "1-3.0.5"),
    ],
)
def test_a_name_has_the_ranges(part: tuple[int, ...], name: str) -> None:
    assert Renumbering(part, 16).name == name
    every_other = Renumbering(tuple(range(0, 2000, 2)), 2000)
    assert every_other.name.startswith("1000-of-2000-")


def test_what_workers_and_links_did_has_their_numbers() -> None:
    usage = WorkerUsage(
        worker=3, stage=0, busy_seconds=1, waiting_seconds=0, peak_memory_bytes=1, bytes_sent=1
    )
    link = LinkUsage(sender=3, receiver=1, bytes_=8, seconds=0.1)
    found = measurement(0.5).model_copy(update={"workers": (usage,), "links": (link,)})
    part = Renumbering((1, 3), 4)
    own = part.measured_in_part(found)
    assert isinstance(own, Measurement)
    assert own.workers[0].worker == 1
    assert (own.links[0].sender, own.links[0].receiver) == (1, 0)
    assert part.measured_in_cluster(own) == found
    failed = FailedMeasurement(failure="timeout", reason="worker 3 hangs")
    assert part.measured_in_part(failed) is failed
