"""Every study has a command that answers and a page with four parts, and imports no other study."""

import ast
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
TOOL = "emulated_cluster"
SHARED = "learning"
"""What several studies import; not one itself."""
STUDIES = sorted(
    path.parent.name for path in BENCHMARKS.glob("*/__main__.py") if path.parent.name != SHARED
)
PARTS = ["Question", "Command", "Result", "What it does not say"]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *BENCHMARKS.rglob("*.md")]
COMMANDS = sorted(
    {
        (match["module"], match["word"] or "")
        for page in PAGES
        for match in re.finditer(
            r"-m benchmarks\.(?P<module>[a-z][\w.]*)(?: (?P<word>[a-z][a-z-]*)\b(?![=/.]))?",
            page.read_text(),
        )
    }
)


def help_of(monkeypatch: pytest.MonkeyPatch, module: str, *words: str) -> object:
    """The exit code of ``python -m benchmarks.MODULE WORDS --help``, in this process."""
    monkeypatch.setattr(sys, "argv", [module, *words, "--help"])
    # Other tests may have imported it.
    monkeypatch.delitem(sys.modules, f"benchmarks.{module}.__main__", raising=False)
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(f"benchmarks.{module}", run_name="__main__", alter_sys=True)
    return ended.value.code


@pytest.mark.parametrize("study", STUDIES)
def test_a_study_is_a_command_and_a_page(study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert help_of(monkeypatch, study) == 0
    text = (BENCHMARKS / study / "README.md").read_text()
    assert re.findall(r"^## (.*)$", text, flags=re.MULTILINE) == PARTS
    assert f"python -m benchmarks.{study}" in text
    assert f"]({study}/README.md)" in (BENCHMARKS / "README.md").read_text()
    assert len(list((BENCHMARKS / study).glob("*.py"))) <= 12


@pytest.mark.parametrize(("module", "word"), COMMANDS)
def test_a_command_that_a_page_names_exists(
    module: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert module in STUDIES
    assert help_of(monkeypatch, module, *filter(None, [word])) == 0


def test_pages_name_no_file_of_benchmarks_that_is_not_there() -> None:
    named = {
        (page.name, found)
        for page in PAGES
        for found in re.findall(r"(?<![\w/])benchmarks/[\w/-]+(?:\.\w+)?", page.read_text())
        if not found.endswith(("MODEL.json", "NAME.csv"))
    }
    assert len(named) > 5
    assert {(page, found) for page, found in named if not (ROOT / found).exists()} == set()


def test_links_of_the_pages_of_studies_lead_somewhere() -> None:
    for page in BENCHMARKS.rglob("*.md"):
        for target, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)
            if not anchor:
                continue
            text = (page.parent / target).read_text()
            titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, (page, target, anchor)


def test_studies_import_no_other_study() -> None:
    for path in BENCHMARKS.rglob("*.py"):
        room = path.relative_to(BENCHMARKS).parts[0]
        allowed = {TOOL, "search", room} if room in STUDIES else {TOOL}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("benchmarks."):
                imported = (node.module or "").split(".")[1]
                assert imported in allowed or imported not in STUDIES, (path, node.module)
                assert room != TOOL or imported == TOOL, "the tool needs nothing else of benchmarks"
