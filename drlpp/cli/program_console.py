"""A console that breaks lines between words, and never between a number and its unit."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

_UNITS = "GB/s|MB/s|kB/s|bytes/s|bytes|GB|MB|kB|ms|µs|ns|s|Mbit/s|Gbit/s|minibatches/s|M"
_WITH_UNIT = re.compile(rf"(?<=\d) (?=(?:{_UNITS})(?![\w]))|(?<=\bM) (?== \d)|(?<=\bM =) (?=\d)")
_GLUE = "\ue000"
"""A character of no alphabet, which stands for a space while lines are broken."""


def wrapped(text: str, width: int) -> str:
    """Return a text with its lines broken where they are longer than ``width``.

    A word that is longer stays whole, as do paths.
    """
    glued = _WITH_UNIT.sub(_GLUE, text)
    lines = [
        textwrap.fill(
            line,
            max(width, 1),
            break_long_words=False,
            break_on_hyphens=False,
            drop_whitespace=True,
            replace_whitespace=False,
            subsequent_indent=" " * (len(line) - len(line.lstrip())),
        )
        for line in glued.split("\n")
    ]
    return "\n".join(lines).replace(_GLUE, " ")


class ProgramConsole(Console):
    """Rich's console, but for how it breaks lines."""

    _soft = False

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; with ``soft_wrap`` lines are left to the terminal."""
        self._soft = bool(options.get("soft_wrap"))
        super().print(*objects, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Return what a renderable is made of; text in a cell is broken where the cell ends."""
        room = options or self.options
        if isinstance(renderable, str) and not self._soft and not room.no_wrap:
            renderable = wrapped(renderable, room.max_width)
        return super().render(renderable, options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text with its lines broken."""
        whole = text if self._soft else wrapped(text, self.width)
        return super().render_str(whole, **options)
