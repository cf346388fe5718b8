"""Names of a package that are imported when they are first used (PEP 562)."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

_LINE = re.compile(r"from (\S+) import (\w+) as (\w+)$", re.MULTILINE)


def lazily(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` of a package.

    Args:
        package: its ``__name__``.
        file: its ``__file__``; beside it the stub ``__init__.pyi``, which type checkers read, has
            a line ``from .module import name as name`` for every name.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    module_of = {name: module for module, name, _ in _LINE.findall(stub)}

    def found(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(module_of[name], package), name)

    return found, lambda: sorted(module_of), list(module_of)
