"""Where programs begin: Ctrl-C ends them in one line also while Python still imports.

So this imports nothing at its top but what Python has.
"""

from __future__ import annotations

import sys
from importlib import import_module

INTERRUPTED = 130
"""What a shell says of a program that Ctrl-C has ended."""


def drlpp() -> None:
    """Run the installed command ``drlpp``."""
    begin("drlpp.cli.main", "drlpp")


def begin(module: str, name: str, function: str = "main") -> None:
    """Run a function of a module, for a program of this name."""
    try:
        program = getattr(import_module(module), function)
    except KeyboardInterrupt:
        print(f"{name}: interrupted", file=sys.stderr)
        sys.exit(INTERRUPTED)
    program()
