"""What a file may hold at all, whatever its kind: text that can be shown, numbers in reach.

A control character in a name could move the cursor of the terminal that it is printed on, and one
that turns the direction of writing could show another name. Such content is refused where a file is
read, and is never printed.
"""

from __future__ import annotations

import unicodedata
from typing import Any

_UNSEEN = {"Cc", "Cf", "Cs", "Zl", "Zp"}
"""Unicode's categories: control, format, half a character, separators of lines and paragraphs."""

_LARGEST = 2**64
"""Integers that torch, numpy and a file system count with are smaller."""


def visible(text: str) -> str:
    """Return ``text`` with escapes such as ``\\x1b`` for what a terminal would act on."""
    if text.isprintable():
        return text
    return "".join(
        character.encode("unicode_escape").decode() if _is_unseen(character) else character
        for character in text
    )


def problem_of_text(text: str) -> str | None:
    """Return what is wrong with a text in a file, or None if nothing is."""
    found = None if text.isprintable() else next(filter(_is_unseen, text), None)
    if found is None:
        return None
    kind = "control" if unicodedata.category(found) == "Cc" else "invisible"
    # Quoted as Python does it, which shows none of these.
    return f"has the {kind} character {found!r} in {text[:60]!r}; remove it"


def problem_of(content: Any, field: str = "") -> str | None:
    """Return what is wrong in the content of a JSON or YAML file, None if nothing is.

    The answer names the field, unless the content is a single value.
    """
    problem = None
    match content:
        case dict():
            for name, inner in content.items():
                known = problem_of(name, field) or problem_of(inner, f"{field}{name}.")
                if known is not None:
                    return known
        case list() | tuple() | set():
            found = (problem_of(one, f"{field}{index}.") for index, one in enumerate(content))
            return next(filter(None, found), None)
        case str():
            problem = problem_of_text(content)
        case int() if not -_LARGEST < content < _LARGEST:
            problem = "is a number beyond 64 bits"
    if problem is None:
        return None
    return f"field '{visible(field.removesuffix('.'))}': {problem}" if field else problem


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _UNSEEN
