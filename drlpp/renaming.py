"""Public names of the last release that have a better one now: they work for one release more."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any


def with_old_names(
    module: str, find: Callable[[str], Any], renamed: Mapping[str, str]
) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that finds old names, too, with a ``DeprecationWarning``.

    Args:
        module: its name, for the warning.
        find: the ``__getattr__`` that finds names of today.
        renamed: today's name of each old one.
    """

    def find_also_old(name: str) -> Any:
        if name not in renamed:
            return find(name)
        warnings.warn(
            f"{module}.{name} is now {module}.{renamed[name]}; the old name goes in version 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
        return find(renamed[name])

    return find_also_old
