"""Options of a class that a user names: an optimizer of torch, a scheduler, or one of their own.

Which options there are, what they are when not given, and what kind of value each takes stand in
the signature of the class.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from inspect import Parameter, isclass, signature
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator

from drlpp.errors import InvalidInput
from drlpp.importing import find_factory

Class = TypeVar("Class")


def _read_option(value: object) -> object:
    """A value as people write it."""
    if isinstance(value, list | tuple):
        # Some pairs of torch's may lack one, such as Adafactor's eps.
        return [None if one is None else _read_number(one) for one in value]
    if isinstance(value, bool) or (isinstance(value, str) and not _is_number(value)):
        return value
    return _read_number(value)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _read_number(value: object) -> int | float:
    if isinstance(value, str) and _is_number(value):
        # YAML takes 1e-3 for a word.
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"is {value!r}; expected a number, true or false, or a list of numbers")
    return value


OptionValue = Annotated[
    bool | int | float | str | list[int | float | None], BeforeValidator(_read_option)
]


def option_text(value: object) -> str:
    """A value as a user would write it on the command line."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(option_text(one) for one in value)}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else f"{value:g}"


def find_class(path: str, base: type[Class], what: str) -> type[Class]:
    """The subclass of ``base`` that ``package.module:Class`` names.

    Raises:
        InvalidInput: if it cannot be imported, or is something else.
    """
    found: Any = find_factory(path, what, InvalidInput)
    if not isclass(found) or not issubclass(found, base):
        raise InvalidInput(f"{what} {path!r} is not a subclass of {base.__module__}.{base.__name__}")
    return found


def option_defaults(kind: type, hidden: Collection[str]) -> dict[str, Any]:
    """The options of ``kind`` and their defaults; ``Parameter.empty`` where there is none.

    Args:
        kind: takes its options as arguments.
        hidden: arguments that are not the user's.
    """
    return {
        name: parameter.default
        for name, parameter in signature(kind).parameters.items()
        if name not in hidden and parameter.kind not in _REST
    }


_REST = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def check_options(
    what: str, kind: type, options: Mapping[str, Any], hidden: Collection[str]
) -> None:
    """See that ``kind`` has these options, that none is missing, and that they are of its types.

    Args:
        what: ``kind`` is, for the error message.
        kind: takes its options as arguments.
        options: by name.
        hidden: arguments that are not the user's.

    Raises:
        InvalidInput: naming the option and what would be right.
    """
    defaults = option_defaults(kind, hidden)
    takes_more = Parameter.VAR_KEYWORD in {one.kind for one in signature(kind).parameters.values()}
    for name, value in options.items():
        if name in hidden or (name not in defaults and not takes_more):
            raise InvalidInput(f"{what} has no option {name!r}; it has {', '.join(defaults)}")
        expected = _expected_instead(value, defaults.get(name))
        if expected is not None:
            raise InvalidInput(f"{name} of {what} is {option_text(value)}; expected {expected}")
    for name, default in defaults.items():
        if default is Parameter.empty and name not in options:
            raise InvalidInput(f"{what} needs a value for {name}")


def _expected_instead(value: object, default: object) -> str | None:
    """What is wanted instead of ``value``, if the default tells; None if it is of that type."""
    match default:
        case bool():
            return None if isinstance(value, bool) else "true or false"
        case int() | float():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            return None if is_number else "a number"
        case str():
            return None if isinstance(value, str) else f"a word, such as {default}"
        case tuple():
            fits = isinstance(value, list) and len(value) == len(default)
            return None if fits else f"{len(default)} numbers, such as {option_text(default)}"
    return None
