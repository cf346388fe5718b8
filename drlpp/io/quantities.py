"""Numbers of files, and how far they reach; names that have to be known.

The bounds are far beyond any machine, and near enough that what is computed of a few is finite.
"""

from collections.abc import Callable, Iterable
from typing import Annotated

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

Count = Annotated[int, Field(ge=0, le=2**53)]
"""Bytes, numbers of things, positions: what a float still holds exactly, 9 million gigabytes."""

Seconds = Annotated[float, Field(ge=0, le=1e9)]
"""A time of up to thirty years."""

MeasuredSeconds = Annotated[float, Field(ge=-1e9, le=1e9)]
"""A difference of measured times, which may come out below 0."""

SecondsPerByte = Annotated[float, Field(ge=0, le=1e3)]

BytesPerSecond = Annotated[float, Field(ge=1e-3, le=1e300)]
"""A bandwidth; the largest stand for links that take no time."""

Room = Annotated[float, Field(gt=0, le=2**53)]
"""Bytes of memory, which people write as 1.6e10."""

Speed = Annotated[float, Field(ge=1e-6, le=1e6)]
"""A speed relative to another device."""


def one_of(names: Callable[[], Iterable[str]]) -> BeforeValidator:
    """Return what refuses all but the names known when it runs."""

    def check(value: object) -> object:
        known = list(names())
        if value not in known:
            *others, last = map(repr, known)
            expected = f"{', '.join(others)} or {last}"
            raise PydanticCustomError("literal_error", "Input should be {of}", {"of": expected})
        return value

    return BeforeValidator(check)
