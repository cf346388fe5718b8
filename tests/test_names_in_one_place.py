"""Names of policies and of kinds of schedules stand where these are made, and nowhere else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from drlpp.schedule.kinds.registry import SCHEDULE_KINDS
from drlpp.schedule.weight_policies import WEIGHT_POLICIES

ROOT = Path(__file__).parents[1]
PRODUCT = ("drlpp", "runtime", "envs", "agents", "train_agent.py")

# "forward" is also a method of modules, a cost, and a column of a table.
NAMES = {*WEIGHT_POLICIES, *SCHEDULE_KINDS} - {"forward"}

THE_TABLE = {"drlpp/schedule/weight_policies.py"}
IMPLEMENTATIONS = {
    "runtime/reference/reference_weights.py",
    "runtime/weights/policies.py",
}
KINDS = {
    "drlpp/schedule/kinds/alternating.py": {"1f1b", "1f1b-flush", "gpipe"},
    "drlpp/schedule/kinds/forward_only.py": {"forward"},
    "drlpp/schedule/kinds/zero_bubble_h1.py": {"zb-h1"},
    "drlpp/schedule/kinds/zero_bubble_v.py": {"zb-v"},
}
# What was measured of a policy.
MEASURED = {"drlpp/schedule/analysis/staleness.py"}
# The planner of that name.
GPIPE_PLANNER = {
    "drlpp/planners/__init__.py",
    "drlpp/planners/planning.py",
    "drlpp/racing/rivals.py",
}


def sources(*places: str) -> Iterator[tuple[str, ast.Module]]:
    for place in places:
        path = ROOT / place
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            yield file.relative_to(ROOT).as_posix(), ast.parse(file.read_text())


def literals(tree: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_no_other_file_of_the_product_names_a_policy_or_a_kind() -> None:
    allowed = THE_TABLE | IMPLEMENTATIONS | MEASURED | KINDS.keys()
    files = [(file, tree) for file, tree in sources(*PRODUCT) if file not in allowed]
    found = {file: literals(tree) & NAMES for file, tree in files}
    assert {file for file, names in found.items() if names} == GPIPE_PLANNER
    assert all(found[file] == {"gpipe"} for file in GPIPE_PLANNER)


def test_each_kind_is_named_in_its_file_alone() -> None:
    assert {file: literals(tree) & SCHEDULE_KINDS.keys() for file, tree in sources(*KINDS)} == KINDS


@pytest.mark.parametrize("place", ["benchmarks", "examples"])
def test_programs_choose_policies_by_name_but_compare_none(place: str) -> None:
    """A method is asked for what it does: whether it flushes, what it holds."""
    for file, tree in sources(place):
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare):
                compared = literals(node) & NAMES
                assert not compared, f"{file}:{node.lineno} compares with {compared}"
            if isinstance(node, ast.match_case):
                matched = literals(node.pattern) & NAMES
                assert not matched, f"{file}:{node.pattern.lineno} matches {matched}"
