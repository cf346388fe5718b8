"""Command lines as a user types them."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from drlpp.cli.main import main


class Shell:
    """Runs a command line, and remembers what it printed."""

    def __init__(self, patch: pytest.MonkeyPatch, capture: pytest.CaptureFixture[str]) -> None:
        self._patch = patch
        self._capture = capture

    def __call__(self, *arguments: object) -> tuple[int, str, str]:
        """Exit code, standard output and standard error."""
        self._patch.setattr(sys, "argv", ["drlpp", *map(str, arguments)])
        self._capture.readouterr()
        with pytest.raises(SystemExit) as stop:
            main()
        printed = self._capture.readouterr()
        return int(stop.value.code or 0), printed.out, printed.err

    def json(self, *arguments: object) -> Any:
        """What a command printed with ``--json``."""
        code, out, err = self(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)
