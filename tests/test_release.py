"""What has to agree when a version is released, and what ``from drlpp import ...`` gives."""

from __future__ import annotations

import tomllib
from pathlib import Path

import yaml

import drlpp.runtime

ROOT = Path(__file__).parent.parent


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_no_name_is_hidden_by_a_file_of_the_same_name() -> None:
    """Importing ``drlpp.name`` makes the module an attribute, and the lazy import is not asked."""
    files = {path.stem for path in Path(drlpp.__file__).parent.iterdir()}
    assert not files & set(drlpp.__all__)


def test_every_public_name_is_there() -> None:
    for name in drlpp.__all__:
        assert getattr(drlpp, name) is not None
