"""Checks of what a user gives to a training; each raises InvalidInput in one line."""

from __future__ import annotations

from drlpp.errors import InvalidInput


def check_kind(name: str, value: object, kind: type, example: str) -> None:
    """Check that an argument, if it was given, is of a kind; show an ``example`` of it if not."""
    if value is not None and not isinstance(value, kind):
        raise InvalidInput(f"{name} is {value!r}; expected such as {example}")


def check_count(name: str, value: object, *, least: int) -> None:
    """Check that an argument is a whole number, and large enough."""
    if not isinstance(value, int):
        raise InvalidInput(f"{name} is {value!r}; a whole number is expected")
    if value < least:
        raise InvalidInput(f"{name} is {value}; at least {least} is needed")


def check_seed(seed: object) -> None:
    """Check the seed before anything is drawn with it: torch's generators take 64 bits."""
    if not isinstance(seed, int) or not -(2**63) <= seed < 2**64:
        raise InvalidInput(f"seed is {seed!r}; a whole number from -2^63 to 2^64 - 1 is expected")


def check_elastic(elastic: object) -> None:
    """Check how a training outlives the loss of workers."""
    if elastic is not None and not hasattr(elastic, "planner"):
        raise InvalidInput(f"elastic is {elastic!r}; expected such as drlpp.Elastic(2, 4)")
