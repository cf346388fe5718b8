"""``docs/architecture.md`` names files and rooms that there are, and no room is missing."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "architecture.md").read_text()
TREES = ("drlpp", "runtime", "envs", "agents", "benchmarks", "tests", "docs")
THERE_ARE = {
    path.relative_to(ROOT).as_posix() + "/" * path.is_dir()
    for tree in TREES
    for path in (ROOT / tree, *(ROOT / tree).rglob("*"))
} | {path.name for path in ROOT.iterdir() if path.is_file()}
NAMED = re.compile(r"[\w{},/-]+(?:/|\.(?:py|pyi|md|toml|yml|yaml)|\.\{[\w,]+\})")


def expanded(text: str) -> Iterator[str]:
    """All names that braces stand for, as a shell has it."""
    if braces := re.search(r"\{([^{}]*)\}", text):
        for choice in braces[1].split(","):
            yield from expanded(text[: braces.start()] + choice + text[braces.end() :])
    else:
        yield text


def named(page: str) -> list[str]:
    """The paths in backticks and in drawings; those of a room may stand without the room."""
    drawings = re.findall(r"^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```text\n.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    texts = re.findall(r"`([^`\n]+)`", prose)
    texts += [word.rstrip(":,") for drawing in drawings for word in drawing.split() if "/" in word]
    found = {path for text in texts if NAMED.fullmatch(text) for path in expanded(text)}
    return sorted(found)


def is_there(path: str) -> bool:
    return path in THERE_ARE or any(known.endswith(f"/{path}") for known in THERE_ARE)


@pytest.mark.parametrize("path", named(PAGE))
def test_what_the_page_names_is_there(path: str) -> None:
    assert is_there(path)


def test_every_room_is_on_the_page() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    parents = ("drlpp", "drlpp.runtime")
    split = [package.rpartition(".") for package in packages["packages"]]
    rooms = {name for parent, _, name in split if parent in parents}
    named_rooms = {path.rstrip("/").rpartition("/")[2] for path in named(PAGE) if path[-1] == "/"}
    assert not rooms - named_rooms
