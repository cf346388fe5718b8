"""Finding a user's function by its import path."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from drlpp.errors import InvalidInput


def find_factory(path: str, what: str, error_type: type[InvalidInput]) -> Callable[..., Any]:
    """The function that ``package.module:function`` names.

    Args:
        path: the import path.
        what: the function makes, for the error message.
        error_type: raised when the module cannot be imported or has no such function.
    """
    module_name, _, attribute = path.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), attribute]):
        raise error_type(f"{what} {path!r}: expected 'package.module:name', as Python imports it")
    folder = str(Path.cwd())
    if folder not in sys.path:
        # A user's own file in the current folder, as `python -m` would find it.
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise error_type(
            f"{what} {path!r}: importing {module_name!r} raised {type(error).__name__}: {error}"
        ) from error
    factory = getattr(module, attribute, None)
    if not callable(factory):
        raise error_type(f"{what} {path!r}: {module_name!r} has no function {attribute!r}")
    return factory
