"""The name that somebody may have meant who wrote one that is not there."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_LIKENESS = 0.85
"""Of two names, from 0 to 1: a letter too many or too few, in long ones another or two in the other
order. In short ones such are other names: vgg16 and vgg19, gpt2 and gpt3."""

_LONGEST = 200


def near_name(name: str, known: Iterable[str]) -> str | None:
    """Return the name that is most like one that is unknown, None if none is like it."""
    if len(name) > _LONGEST:
        # Comparing takes the product of both lengths.
        return None
    return next(iter(get_close_matches(name, list(known), n=1, cutoff=_LIKENESS)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """Return the question that an error message ends with, None if no name is like it."""
    near = near_name(name, known)
    return None if near is None else f"did you mean {near!r}?"
