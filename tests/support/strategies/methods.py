"""Methods whose links differ in depth, and whose stages differ in recomputation."""

from __future__ import annotations

from hypothesis import strategies as st

from drlpp.schedule.method import Method


def depths(stages: int) -> st.SearchStrategy[int | tuple[int, ...]]:
    """One number for all links, or one for each."""
    one = st.integers(0, 3)
    if stages == 1:
        return one
    return one | st.lists(one, min_size=stages - 1, max_size=stages - 1).map(tuple)


def recomputing(stages: int) -> st.SearchStrategy[bool | tuple[bool, ...]]:
    """One answer for all stages, or one for each."""
    each = st.lists(st.booleans(), min_size=stages, max_size=stages).map(tuple)
    return st.booleans() | each


@st.composite
def uneven(draw: st.DrawFn, method: Method, stages: int) -> Method:
    """The method as it is, or with other depths and recomputation for so many stages."""
    if draw(st.booleans()):
        return method
    values = {**method.model_dump(), "recompute": draw(recomputing(stages))}
    if not method.flushes:
        values["in_flight_per_link"] = draw(depths(stages))
    return Method.model_validate(values)
