"""Every command and snippet of README.md and docs/ is run, or says why it is not."""

from pathlib import Path

import pytest

from tests.support.programs.documented_commands import (
    DOCUMENTS,
    blocks_of,
    lay_out,
    play,
)

FIRST = ("README.md", "docs/tutorial.md")
"""What a reader does before anything else; other documents use the files that come of it."""


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_block_is_run_or_marked(document: str) -> None:
    for block in blocks_of(document):
        assert block.label in ("sh", "python", "yaml", "text"), block.place
        assert all(block.marks.values()), f"{block.place}: a mark without a reason"
        if block.is_run:
            block.as_run()


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
