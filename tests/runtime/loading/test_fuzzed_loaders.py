"""Any bytes in any file that is read: an ordinary result, or one readable line; no code runs."""

from pathlib import Path

import pytest

from tests.endurance.fuzzing.damage import HOSTILE
from tests.endurance.fuzzing.loaders import Loader, complaint_about, loaders, read_damaged

NAMES = ("placement", "cluster", "graph", "profile", "run", "measurements", "checkpoint", "costs")


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loader]:
    found = dict(loaders(tmp_path_factory.mktemp("valid")))
    assert set(found) == set(NAMES)
    return found


@pytest.mark.parametrize("inputs", [8, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_valid_files_are_read_and_others_told(
    known: dict[str, Loader],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    inputs: int,
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = known[name]
    path = (tmp_path / "valid").with_suffix(loader.suffix)
    path.write_bytes(loader.valid)
    loader.read(path)
    for data in HOSTILE:
        read_damaged(loader, data, tmp_path / "input")
    assert complaint_about(loader, tmp_path / "input", inputs, seed=0) is None
    assert not (tmp_path / "trapped").exists()
