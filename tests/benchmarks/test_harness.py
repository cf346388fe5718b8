"""Every study of the harness: its smallest case, its rows in git, its tables, its commands."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Any

import pytest

from benchmarks.__main__ import STUDIES, chosen, page_of, study_of
from benchmarks.study import Row, Study, read_csv, write_csv
from drlpp.errors import InvalidFile, InvalidInput
from drlpp.io.documents import Record


class Kind(StrEnum):
    LIVE = "live"


class Case(Record):
    model: str
    kind: Kind = Kind.LIVE
    seed: int = 0
    note: str = ""


class Seen(Row):
    case: Case
    seconds: float
    best: str | None = None
    steps: tuple[float, ...] = ()


ROWS = [
    Seen(case=Case(model='a, "b"'), seconds=1 / 3, steps=(0.1, 2.0)),
    Seen(case=Case(model="1", seed=1, note="x"), seconds=2.0, best="plan"),
]


def test_rows_come_back_from_a_table_as_they_were(tmp_path: Path) -> None:
    path = tmp_path / "results" / "seen.csv"
    write_csv(path, ROWS)
    assert path.read_text().splitlines()[0] == "model,kind,seed,note,seconds,best,steps"
    assert len(path.read_text().splitlines()) == 3
    assert read_csv(path, Seen) == ROWS


@pytest.mark.parametrize(
    ("line", "words"), [("a,live,0,,fast,,[]", "line 3"), ("a,live,0,,1.0,,[true,{}]", "line 3")]
)
def test_a_line_that_is_no_row_is_named(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "seen.csv"
    write_csv(path, ROWS[:1])
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(InvalidFile, match=words):
        read_csv(path, Seen)


def test_cases_are_chosen_by_their_fields() -> None:
    cases = [Case(model=model, seed=seed) for model in "ab" for seed in (0, 1)]
    assert chosen(cases, ["model=a", "seed=1"]) == [Case(model="a", seed=1)]
    assert chosen(cases, []) == cases
    with pytest.raises(InvalidInput, match="--only model=c"):
        chosen(cases, ["model=c"])
    with pytest.raises(InvalidInput, match=r"'nothing'.*search"):
        study_of("nothing")


WITHOUT_ROWS = {"timings"}
"""Studies whose rows are not in git."""
ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"


@pytest.mark.parametrize("name", [name for name in STUDIES if name not in WITHOUT_ROWS])
def test_rows_in_git_give_the_tables_of_the_pages(name: str) -> None:
    study: Study[Any, Any] = study_of(name)
    assert study.name == name
    rows = study.stored()
    assert rows
    assert len({row.case for row in rows}) == len(rows)
    text = page_of(study, rows)
    assert text.count("| --- |") >= 1
    assert "nan" not in text.split()
    page = (BENCHMARKS / "papers" / "README.md").read_text()
    if f"<!-- {name} -->" in page:
        assert f"<!-- {name} -->\n\n{text}\n<!-- end of {name} -->" in page


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", STUDIES)
def test_the_smallest_case_runs(name: str, tmp_path: Path) -> None:
    study: Study[Any, Any] = study_of(name)
    if study.needs.gpu or study.needs.root:
        pytest.skip(f"needs {study.needs}")
    case, *_ = study.wanted(study.cases(None, short=True), [])
    row = study.run(case)
    assert row.case == case
    write_csv(tmp_path / "one.csv", [row])
    assert read_csv(tmp_path / "one.csv", study.row) == [row]
    assert page_of(study, [row])


PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *BENCHMARKS.rglob("*.md")]


def test_pages_name_studies_and_files_that_are_there() -> None:
    text = "\n".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"-m benchmarks (?:run|report) ([a-z][\w-]*)", text))
    assert "search" in named
    assert named <= {*STUDIES}
    assert set(re.findall(r"-m benchmarks\.([\w.]+)", text)) == {"emulated_cluster"}
    files = set(re.findall(r"(?<![\w/])benchmarks/[\w/-]+(?:\.\w+)?", text))
    files = {file for file in files if not file.endswith(("MODEL.json", "NAME.csv"))}
    assert files
    assert {file for file in files if not (ROOT / file).exists()} == set()


def test_links_of_the_pages_of_studies_lead_somewhere() -> None:
    for page in BENCHMARKS.rglob("*.md"):
        for target, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]+))?\)", page.read_text()):
            assert (page.parent / target).exists(), (page, target)
            if not anchor:
                continue
            titles = re.findall(r"^#+ (.*)$", (page.parent / target).read_text(), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in anchors, (page, target, anchor)
