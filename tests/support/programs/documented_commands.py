"""The commands and snippets of the documentation, as a reader finds them.

A block is what stands between fences. Its label says what it is: ``sh`` and ``python`` are run,
``yaml`` is data, ``text`` is what a program prints, or a drawing. Comments of HTML in the lines
above a fence, which a reader of the source sees, say more:

``<!-- not run: REASON -->``
    it needs hardware (or other things that a test lacks), or takes long.
``<!-- file: NAME -->``
    it is a file that the reader writes.
``<!-- run with: OPTIONS -->``
    every command of it is run with these options behind its own, so that it takes less time.
``<!-- run with: NEW instead of OLD -->``
    it is run with another text in one place.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENTS = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"```(\w*)$")
_MARK = re.compile(r"<!-- (not run|file|run with)(?:: (.+))? -->$")
_INSTEAD = re.compile("(.+) instead of (.+)")
_RUN = ("sh", "python")


@dataclass(frozen=True)
class Block:
    """What stands between two fences, where, and what its marks say."""

    place: str
    label: str
    text: str
    marks: dict[str, str]

    @property
    def is_run(self) -> bool:
        """Whether it is a command or a snippet that nothing keeps from being run."""
        return self.label in _RUN and not {"not run", "file"} & self.marks.keys()

    def as_run(self) -> str:
        """The text that is run.

        Raises:
            ValueError: if a mark does not fit to the text.
        """
        change = self.marks.get("run with")
        if change is None:
            return self.text
        if instead := _INSTEAD.fullmatch(change):
            new, old = instead.groups()
            if self.text.count(old) != 1:
                raise ValueError(f"{old!r} stands there {self.text.count(old)} times")
            return self.text.replace(old, new)
        if self.label != "sh":
            raise ValueError("options are for commands")
        joined = self.text.replace("\\\n", " ")
        commands = [line.partition(" #")[0].rstrip() for line in joined.splitlines()]
        return "\n".join(f"{command} {change}" for command in commands)


def blocks_of(document: str) -> list[Block]:
    """All blocks of a document, in order."""
    blocks = []
    lines = enumerate((ROOT / document).read_text().splitlines(), 1)
    marks: dict[str, str] = {}
    for number, line in lines:
        if mark := _MARK.match(line):
            marks[mark[1]] = mark[2] or ""
        elif fence := _FENCE.match(line):
            inner = []
            for _, text in lines:
                if text == "```":
                    break
                inner.append(text)
            place = f"{document}:{number}"
            blocks.append(Block(place, fence[1], "\n".join(inner), marks))
            marks = {}
        elif marks:
            raise ValueError(f"{document}:{number}: a mark that no block follows: {marks}")
    return blocks


def lay_out(folder: Path) -> None:
    """Put into ``folder`` what a reader has of a clone; the package itself is installed."""
    shutil.copy(ROOT / "train_agent.py", folder)
    for name in ("examples", "benchmarks", "docs", "tests/data"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))


def play(document: str, folder: Path) -> int:
    """Do what a document says, in ``folder``, and print what is done.

    Returns:
        how many blocks were run.
    """
    environment = dict(os.environ, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    count = 0
    for block in blocks_of(document):
        if "file" in block.marks:
            (folder / block.marks["file"]).write_text(block.text + "\n")
        if not block.is_run:
            continue
        text = block.as_run()
        print(f"{block.place}\n{text}", flush=True)
        # In a file, as in a shell's script or a program of one's own.
        path = folder / ("snippet.sh" if block.label == "sh" else "snippet.py")
        path.write_text(text)
        command = ["bash", "-euo", "pipefail"] if block.label == "sh" else ["python"]
        done = subprocess.run(
            [*command, path.name],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=1200,
        )
        assert done.returncode == 0, f"{block.place}\n{text}\n\n{done.stdout}"
        count += 1
    return count
