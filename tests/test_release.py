"""What has to agree when a version is released, and what ``from drlpp import ...`` gives."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import drlpp.runtime

ROOT = Path(__file__).parent.parent
KINDS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_versions_agree() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == version
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()


def test_the_changelog_keeps_its_form() -> None:
    """As keepachangelog.com has it, with what is not released at the top."""
    text = (ROOT / "CHANGELOG.md").read_text()
    releases = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert releases[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - .+", release) for release in releases[1:])
    for part in re.split(r"^## .+$", text, flags=re.MULTILINE)[1:]:
        kinds = re.findall(r"^### (.+)$", part, re.MULTILINE)
        assert len(kinds) == len(set(kinds))
        assert set(kinds) <= KINDS
        assert "\n- " not in part.partition("\n### ")[0], "a line under no kind"


def test_no_name_is_hidden_by_a_file_of_the_same_name() -> None:
    """Importing ``drlpp.name`` makes the module an attribute, and the lazy import is not asked."""
    files = {path.stem for path in Path(drlpp.__file__).parent.iterdir()}
    assert not files & set(drlpp.__all__)


def test_every_public_name_is_there() -> None:
    for name in drlpp.__all__:
        assert getattr(drlpp, name) is not None
