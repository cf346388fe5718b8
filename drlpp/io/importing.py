"""Importing what has a name of the form ``package.module:name``, if the user has said that name.

Importing runs code. So a name in a file is information alone: what is imported was given in this
program, on the command line or in code (:meth:`ImportedByName.as_named_by_user`).
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Self

from pydantic import PrivateAttr

from drlpp.errors import InvalidInput, did_you_mean
from drlpp.io.documents import Record


class ImportedByName(Record):
    """What may be named by its import path: a model, an optimizer, a learning-rate schedule.

    Whether the user has named it is no field: no file can say that of itself.

    Attributes:
        what: the kind of thing, for error messages, which also tell how to name it in a command
            (``_option``) and ``_in_python``.
        name: the name of one that drlpp knows, or ``package.module:name``.
    """

    what: ClassVar[str]
    _option: ClassVar[str]
    _in_python: ClassVar[str]

    name: str
    _named_by_user: bool = PrivateAttr(default=False)

    @property
    def refused(self) -> bool:
        """Whether it would have to be imported, and only a file names it."""
        return ":" in self.name and not self._named_by_user

    @property
    def naming_option(self) -> str:
        """The option for a command that reads a file with this name; empty if it needs none."""
        return f" {self._option} {shlex.quote(self.name)}" if ":" in self.name else ""

    def as_named_by_user(self) -> Self:
        """Return a copy that may be imported, since the user has named it."""
        named = self.model_copy()
        named._named_by_user = True
        return named

    def imported(self, error_type: type[InvalidInput]) -> Callable[..., Any]:
        """Import and return what ``package.module:name`` stands for.

        Raises:
            error_type: only a file names it, it cannot be imported, or does not exist.
        """
        if self.refused:
            raise error_type(
                f"{self.what} {self.name!r} is named by a file alone, which imports nothing; name "
                f"it again:{self.naming_option}, in Python {self._in_python.format(self.name)}"
            )
        return find(self.name, self.what, error_type)

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same thing, whoever has named them."""
        return type(self) is type(other) and self.__dict__ == other.__dict__


def find(path: str, what: str, error_type: type[InvalidInput]) -> Callable[..., Any]:
    """Import and return what a user has named ``package.module:name``.

    Args:
        path: the name.
        what: the kind of thing, for error messages.
        error_type: raised if it cannot be imported, or does not exist.
    """
    module_name, _, attribute = path.partition(":")
    is_file = module_name.endswith(".py")
    if is_file or not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        name = module_name.removesuffix(".py")
        name = Path(name).name if name.startswith("/") else name.strip("./").replace("/", ".")
        like = f", not a file; like {name}:{attribute or 'FUNCTION'}" if is_file else ""
        raise error_type(
            f"{what} {path!r}: expected 'package.module:name', as Python imports it{like}"
        )
    if (folder := str(Path.cwd())) not in sys.path:
        # The user's own file in the current folder, which comes last: a `numpy.py` that lies there
        # takes nobody's place.
        sys.path.append(folder)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        # Where a package of the same name took the user's place.
        place = getattr(sys.modules.get(module_name.partition(".")[0]), "__file__", None)
        found = f" ({place})" if place else ""
        raise error_type(
            f"{what} {path!r}: importing {module_name!r}{found} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        functions = [name for name, value in vars(module).items() if callable(value)]
        near = did_you_mean(attribute, functions)
        hint = "" if near is None else f"; {near}"
        place = getattr(module, "__file__", None) or module_name
        raise error_type(f"{what} {path!r}: {place} has no function {attribute!r}{hint}")
    return factory
