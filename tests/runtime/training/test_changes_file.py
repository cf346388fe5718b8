"""What became of workers, as a run's folder keeps it."""

from pathlib import Path

import pytest

from drlpp.errors import InvalidFile
from drlpp.runtime.training.changes_file import WorkersChanged, read_changes, write_change

CHANGE = WorkersChanged(
    epochs=1,
    minibatches=40,
    reason="host far cannot be reached: workers 2, 3 are given up",
    given_up=(2, 3),
    workers=(0, 1),
    configuration="1-1",
)


def test_changes_are_read_as_written_but_for_a_half_line(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    assert read_changes(path) == ()
    later = CHANGE.model_copy(update={"epochs": 2, "minibatches": 0})
    for change in (CHANGE, later):
        write_change(path, change)
    with path.open("a") as file:
        file.write('{"epochs"')
    assert read_changes(path) == (CHANGE, later)
    write_change(path, CHANGE)
    assert read_changes(path) == (CHANGE, later, CHANGE)
    assert CHANGE.text.endswith(
        "given up; training continues at minibatch 41 of epoch 2 on 2 workers, 1-1"
    )
    assert "at epoch 3 on" in later.text


def test_another_line_is_told(tmp_path: Path) -> None:
    path = tmp_path / "changes.jsonl"
    path.write_text('{"epochs": 1}\n')
    with pytest.raises(InvalidFile, match=r"changes\.jsonl, line 1: field 'reason'"):
        read_changes(path)
