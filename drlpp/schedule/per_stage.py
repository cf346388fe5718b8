"""Options of a method with one value for all stages, or all links between them, or one for each.

A list of equal values is that value, however long it is, so that what is the same is equal. Links
are numbered by the stages that they lead into: the first number is for those into stage 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

from pydantic import (
    BeforeValidator,
    Field,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from drlpp.errors import InvalidInput

_Value = TypeVar("_Value", int, bool)


def collapsed(values: Sequence[_Value]) -> _Value | tuple[_Value, ...]:
    """Return one value if all are equal, otherwise one for each."""
    return values[0] if len(set(values)) == 1 else tuple(values)


def of_links(per_link: int | tuple[int, ...], stages: int) -> tuple[int, ...]:
    """Return the number for the links into every stage but the first.

    Raises:
        InvalidInput: so many stages have more or fewer links.
    """
    return _each("in_flight_per_link", per_link, stages - 1, "link", stages)


def of_stages(each: bool | tuple[bool, ...], stages: int) -> tuple[bool, ...]:
    """Return whether each stage recomputes.

    Raises:
        InvalidInput: there are more or fewer values than stages.
    """
    return _each("recompute", each, stages, "stage", stages)


def _each(
    option: str, given: _Value | tuple[_Value, ...], count: int, what: str, stages: int
) -> tuple[_Value, ...]:
    if not isinstance(given, tuple):
        return (given,) * count
    if len(given) != count:
        several = f", or {count}, one for each {what}" if count > 1 else ""
        raise InvalidInput(
            f"{option} has {len(given)} values, and the placement has "
            f"{stages} stage{'s' * (stages > 1)}: give one value{several}"
        )
    return given


def links_text(per_link: int | tuple[int, ...]) -> str:
    """Return the number, or those of all links, such as ``1-0-2``."""
    return "-".join(map(str, per_link)) if isinstance(per_link, tuple) else str(per_link)


def recomputing_text(each: bool | tuple[bool, ...]) -> str:
    """Say where activations are computed again."""
    if not isinstance(each, tuple):
        return "recomputation" if each else "no recomputation"
    stages = [str(stage) for stage, chosen in enumerate(each) if chosen]
    return f"recomputation on stage{'s' * (len(stages) > 1)} {' '.join(stages)}"


def stretched(given: _Value | tuple[_Value, ...], count: int) -> _Value | tuple[_Value, ...]:
    """Return the values for another number of stages or links: each as the nearest of the old."""
    if not isinstance(given, tuple) or len(given) == count:
        return given
    return collapsed([given[n * len(given) // count] for n in range(count)] or given[:1])


def most(given: _Value | tuple[_Value, ...]) -> _Value:
    """Return the largest value: true if any is."""
    return max(given) if isinstance(given, tuple) else given


def refuse_lists(*given: object) -> None:
    """Check that no option is a list, where nobody knows how many stages there will be.

    Raises:
        InvalidInput: one is.
    """
    if any(isinstance(one, tuple) for one in given):
        raise InvalidInput(
            "a list of in_flight_per_link or recompute is for one number of stages, and here it is "
            "still to be chosen; give one value for all of them"
        )


def _one_or_each(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """Collapse a list, and of what is wrong say what the value was meant to be."""
    try:
        found = check(value)
    except ValidationError as error:
        is_list = isinstance(value, list | tuple)
        for problem in error.errors():
            if str(problem["loc"][0]).startswith("tuple") == is_list:
                message = {"message": problem["msg"]}
                raise PydanticCustomError(problem["type"], "{message}", message) from None
        raise
    return collapsed(found) if isinstance(found, tuple) else found


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"expected a number, found {str(value).lower()}")
    return value


_Depth = Annotated[int, Field(ge=0, le=100), BeforeValidator(_number)]
_Several = Field(min_length=1, max_length=10_000)
_Whole = Annotated[int, Field(ge=0, le=100)]

PerLink = Annotated[_Whole | Annotated[tuple[_Depth, ...], _Several], WrapValidator(_one_or_each)]
"""A number for all links, or one for each."""

PerStage = Annotated[bool | Annotated[tuple[bool, ...], _Several], WrapValidator(_one_or_each)]
"""Whether all stages do something, or each."""
