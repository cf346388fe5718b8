"""Nothing depends on the time of day, which jumps when a clock is set or a laptop wakes up."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = "drlpp", "runtime", "envs", "agents"
OF_THE_DAY = {"time", "time_ns", "datetime", "date", "utcnow", "st_mtime", "st_ctime", "getmtime"}


def _taken(node: ast.AST) -> set[str]:
    """What a part of a program takes from a module or an object."""
    match node:
        case ast.Attribute(attr=name):
            return {name}
        case ast.ImportFrom(module="time" | "datetime", names=names):
            return {name.name for name in names}
    return set()


@pytest.mark.parametrize("folder", FOLDERS)
def test_durations_and_ages_are_taken_from_clocks_that_only_go_on(folder: str) -> None:
    paths = [*(ROOT / folder).rglob("*.py"), ROOT / "train_agent.py"]
    found = [
        f"{path.relative_to(ROOT)}: {sorted(taken)}"
        for path in paths
        for node in ast.walk(ast.parse(path.read_text()))
        if (taken := _taken(node) & OF_THE_DAY)
    ]
    assert len(paths) > 5
    assert not found
