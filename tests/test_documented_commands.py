"""Every command and snippet of README.md and docs/ is run, or says why it is not."""

from collections import Counter
from pathlib import Path

import pytest

from tests.support.programs.documented_commands import (
    DOCUMENTS,
    Block,
    blocks_of,
    commands_without_fence,
    lay_out,
    play,
)

FIRST = ("README.md", "docs/tutorial.md")
"""What a reader does before anything else; other documents use the files that come of it."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_is_run_or_marked(document: str) -> None:
    blocks = blocks_of(document)
    problems = [problem for block in blocks for problem in block.problems]
    assert not problems, "\n".join(problems)
    assert not commands_without_fence(document)
    kinds = Counter(
        "run"
        if block.is_run
        else next((mark for mark in ("not run", "file") if mark in block.marks), block.label)
        for block in blocks
    )
    print(document, dict(kinds))
    for block in blocks:
        if "not run" in block.marks:
            print(f"  {block.place} is not run: {block.marks['not run']}")


def _block(label: str, text: str, **marks: str) -> Block:
    named = {mark.replace("_", " "): detail for mark, detail in marks.items()}
    return Block("here.md:1", label, text, named)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        (_block("", "drlpp"), "label ''"),
        (_block("text", "$ drlpp show x"), "a command with the label of output"),
        (_block("yaml", "kind: cluster"), "say what file"),
        (_block("sh", "drlpp show x", not_run=""), "the mark 'not run' with ''"),
        (_block("sh", "drlpp show x", not_run="as the block before"), "'needs …'"),
        (_block("python", "fit(2)", run_with="9 instead of 3"), "'3' stands there 0 times"),
        (_block("python", "fit(2)", run_with="--epochs 1"), "options are for commands"),
    ],
)
def test_what_is_neither_run_nor_marked_is_found(block: Block, problem: str) -> None:
    (found,) = block.problems
    assert problem in found


def test_a_shorter_run_is_of_the_same_commands() -> None:
    text = "drlpp train a.json \\\n    --epochs 9   # long\ndrlpp show a.json"
    assert _block("sh", text, run_with="--epochs 1").as_run().split("\n") == [
        "drlpp train a.json      --epochs 9 --epochs 1",
        "drlpp show a.json --epochs 1",
    ]
    assert _block("python", "fit(9)", run_with="(1) instead of (9)").as_run() == "fit(1)"


@pytest.mark.parametrize("text", ["false | true", "false\ntrue"])
def test_a_command_that_fails_fails_the_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(
        "tests.support.programs.documented_commands.blocks_of", lambda _: [_block("sh", text)]
    )
    with pytest.raises(AssertionError, match=r"here.md:1"):
        play("here.md", tmp_path)


@pytest.fixture(scope="module")
def after_readme(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a reader who has done what README and the tutorial say."""
    folder = tmp_path_factory.mktemp("clone")
    lay_out(folder)
    for document in FIRST:
        assert play(document, folder)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("document", [d for d in DOCUMENTS if d not in FIRST])
def test_a_reader_can_do_all_of_it(document: str, after_readme: Path) -> None:
    """What README and the tutorial say is run before, or the test fails."""
    count = play(document, after_readme)
    assert count == sum(block.is_run for block in blocks_of(document))
