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


def check_elastic(elastic: object, copy_every: object, *, peer_copies: bool) -> None:
    """Check how a training outlives the loss of workers, and how often they make copies for that.

    Raises:
        InvalidInput: one of them is something else, or the copies are for nothing.
    """
    if elastic is not None and not hasattr(elastic, "planner"):
        raise InvalidInput(f"elastic is {elastic!r}; expected such as drlpp.Elastic(2, 4)")
    check_count("copy_every", copy_every, least=0)
    if copy_every and elastic is None:
        raise InvalidInput(
            f"copy_every is {copy_every}, but training ends with the first worker that is lost; "
            "give elastic as well, such as 2:4"
        )
    if peer_copies and not copy_every:
        raise InvalidInput(
            "peer copies are those of copies on the hosts; say how often these are made, too "
            "(--copy-every, copy_every)"
        )
