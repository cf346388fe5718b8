"""Any bytes in any file that is read: an ordinary result, or one readable line; no code runs.

`python -m benchmarks.fuzz_loaders` does the same a hundred thousand times.
"""

import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks.loader_fuzzing import HOSTILE, Loader, complaint_about, loaders, mutated

NAMES = (
    "placement",
    "cluster",
    "graph",
    "profile",
    "run",
    "measurements",
    "checkpoint",
    "weights",
    "pipedream",
    "instance",
)


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Loader]:
    found = dict(loaders(tmp_path_factory.mktemp("valid")))
    assert set(found) == set(NAMES)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_valid_files_are_read(known: dict[str, Loader], tmp_path: Path, name: str) -> None:
    for valid in known[name].valid:
        path = (tmp_path / "file").with_suffix(known[name].suffix)
        path.write_bytes(valid)
        known[name].read(path)


@pytest.mark.parametrize("name", NAMES)
def test_damaged_and_hostile_files_are_told(
    known: dict[str, Loader], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    loader = known[name]
    for data in HOSTILE:
        assert complaint_about(loader, data, tmp_path / "input") is None
    for number in range(150):
        chance = random.Random(f"{name} {number}")
        data = mutated(chance.choice(loader.valid), chance)
        assert complaint_about(loader, data, tmp_path / "input") is None, number
    assert not (tmp_path / "trapped").exists()


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.binary(max_size=300))
@pytest.mark.parametrize("name", NAMES)
def test_any_bytes_are_told(
    known: dict[str, Loader], tmp_path: Path, name: str, data: bytes
) -> None:
    assert complaint_about(known[name], data, tmp_path / "input") is None
