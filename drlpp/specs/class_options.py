"""A class that a user names, with its options: torch's optimizer, scheduler, or one of their own.

Which options there are, and what they are when not given, stands in the signature of the class.
Whether their values will do, the class itself says when it is built.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from inspect import Parameter, isclass, signature
from typing import Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, Field, ValidationError, field_validator, model_validator

from drlpp.errors import InvalidInput
from drlpp.io.documents import first_problem
from drlpp.io.importing import ImportedByName


def _read_option(value: object, *, alone: bool = True) -> object:
    """Read a value as people write it; in a list there are numbers alone."""
    if alone and isinstance(value, list | tuple):
        # Some pairs of torch's may lack one, such as Adafactor's eps.
        return [None if one is None else _read_option(one, alone=False) for one in value]
    number = value
    if isinstance(value, str):
        # YAML takes 1e-3 for a word.
        with suppress(ValueError):
            number = float(value)
    if alone and isinstance(number, bool | str):
        return number
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise ValueError(f"is {value!r}; expected a number, true or false, or a list of numbers")
    return number


OptionValue = Annotated[
    bool | int | float | str | list[int | float | None],
    BeforeValidator(lambda value: _read_option(value)),
]


class NamedClass(ImportedByName, ABC):
    """A class by name, and its options.

    One of torch's is checked when its description is made, one of the user's own only by
    :meth:`check`, so that reading a file imports nothing that it names.

    Attributes:
        module, base_name: of torch, which has the classes; and the class that all are made of.
        ending: of the names of the classes, which may be left out.
        hidden: arguments of such classes that are not the user's.
        name: the name of a class of torch in lower case, or ``package.module:Class``.
        options: arguments of the class.
    """

    module: ClassVar[str]
    base_name: ClassVar[str]
    ending: ClassVar[str] = ""
    hidden: ClassVar[frozenset[str]]

    options: dict[str, OptionValue] = Field(default_factory=dict)

    @classmethod
    def base(cls) -> type:
        """Return the class of torch that all of them are subclasses of."""
        found: type = getattr(import_module(cls.module), cls.base_name)
        return found

    @classmethod
    def known(cls) -> dict[str, type]:
        """Return the classes of torch, and ours, by lower-case name."""
        base = cls.base()
        return {
            name.lower(): kind
            for name, kind in vars(import_module(cls.module)).items()
            if isclass(kind) and issubclass(kind, base) and kind is not base and name[0] != "_"
        }

    @field_validator("name")
    @classmethod
    def _as_torch_has_it(cls, name: str) -> str:
        """Return ``adam`` for ``torch.optim:Adam``: torch's needs no import path."""
        known, lower = cls.known(), name.removeprefix(f"{cls.module}:").lower()
        if ":" in name and lower not in known:
            return name
        return lower + cls.ending if lower + cls.ending in known else lower

    @abstractmethod
    def _try(self) -> None:
        """Use one for a parameter that nobody has, so that torch says whether that is possible."""

    def find(self) -> type:
        """Return the class that ``name`` names.

        Raises:
            InvalidInput: if there is none.
        """
        known = self.known()
        if ":" in self.name:
            base = self.base()
            kind: Any = self.imported(InvalidInput)
            if not isclass(kind) or not issubclass(kind, base):
                raise InvalidInput(
                    f"{self.what} {self.name!r} is not a subclass of "
                    f"{base.__module__}.{base.__name__}"
                )
        elif self.name in known:
            kind = known[self.name]
        else:
            raise InvalidInput(
                f"{self.what} {self.name!r} is unknown; there are {', '.join(sorted(known))}, and "
                "a class of your own as 'package.module:Class'"
            )
        found: type = kind
        return found

    def check(self) -> None:
        """Check that there is such a class with these options.

        Raises:
            InvalidInput: if not, or if it cannot work here.
        """
        self.find()
        if hidden := self.hidden & self.options.keys():
            raise InvalidInput(f"{self.what} {self.name} has no option {', '.join(hidden)} here")
        try:
            self._try()
        except Exception as error:
            raise self._refusal(error) from error

    def _refusal(self, error: Exception) -> InvalidInput:
        """Return an error that says in one line what the class itself does not accept."""
        reason, usual = " ".join(str(error).split()), self.defaults
        required = [name for name in option_defaults(self.find(), self.hidden) if name not in usual]
        has = ", ".join(filter(None, [*required, options_text(usual)]))
        return InvalidInput(
            f"{self.what} {self.name} cannot have the options "
            f"({options_text(self.options) or 'none'}): {reason}; it has {has}"
        )

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        if ":" not in self.name:
            self.check()
        return self

    @classmethod
    def _parse(
        cls, name: str, options: Mapping[str, object], *, by_user: bool = True, **others: object
    ) -> Self:
        """Build from what a user typed; options that are None are left at their default.

        Args:
            name: of the class.
            options: its arguments.
            by_user: the name is the user's as well, so it may be imported.
            others: further fields.
        """
        given = {key: value for key, value in options.items() if value is not None}
        try:
            spec = cls.model_validate({"name": name, "options": given, **others})
        except ValidationError as error:
            cause = error.errors()[0].get("ctx", {}).get("error")
            if isinstance(cause, InvalidInput):
                raise cause from None
            raise InvalidInput(f"{cls.what} {name}: {first_problem(error)}") from None
        if by_user:
            spec = spec.as_named_by_user()
        spec.check()
        return spec

    @property
    def arguments(self) -> dict[str, Any]:
        """The options as the class takes them: a list in a file is a tuple in torch."""
        return {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.options.items()
        }

    @property
    def defaults(self) -> dict[str, Any]:
        """The options that need not be given, with their values, as arguments of the class."""
        declared = option_defaults(self.find(), self.hidden)
        return {key: value for key, value in declared.items() if value is not Parameter.empty}

    @property
    def settings(self) -> dict[str, Any]:
        """All fields, of the options only those that differ from the defaults: its identity."""
        usual, given = self.defaults, self.arguments
        options = {k: v for k, v in self.options.items() if k not in usual or given[k] != usual[k]}
        return {**self.model_dump(), "options": options}


def options_text(options: Mapping[str, object]) -> str:
    """Return options as a user would list them."""
    texts = {k: v if isinstance(v, str) else json.dumps(v, default=str) for k, v in options.items()}
    return ", ".join(f"{key}={text}" for key, text in texts.items())


def option_defaults(kind: type, hidden: frozenset[str]) -> dict[str, Any]:
    """Return the options of a class and their defaults; ``Parameter.empty`` where there is none."""
    rest = Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD
    return {
        name: parameter.default
        for name, parameter in signature(kind).parameters.items()
        if name not in hidden and parameter.kind not in rest
    }
