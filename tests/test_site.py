"""The site of docs/: it is built without a network, and a link to nowhere is an error."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
INSIDE = ("runtime", "envs", "agents")


_LOADED = re.compile(
    r'<(?:script|img)\b[^>]*\bsrc="?(?:https?:)?//|'
    r'<link\b(?=[^>]*\brel="?(?:stylesheet|preconnect))[^>]*\bhref="?(?:https?:)?//'
)
"""What a page loads from elsewhere."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What `make docs` has, with pages that a test may change."""
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    tree = tmp_path / ".typecheck" / "drlpp"
    tree.mkdir(parents=True)
    for path in [*(ROOT / "drlpp").iterdir(), *(ROOT / name for name in INSIDE)]:
        (tree / path.name).symlink_to(path)
    return tmp_path


def build(project: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=project,
        env=dict(os.environ, NO_MKDOCS_2_WARNING="1"),
        capture_output=True,
        text=True,
        timeout=280,
    )


@pytest.mark.system
def test_the_site_is_built_and_loads_nothing_from_elsewhere(project: Path) -> None:
    done = build(project)
    assert done.returncode == 0, done.stderr
    site = project / "site"
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")}
    reference = (site / "reference.html").read_text()
    for described in ("PipelineTrainer", "checkpoint_every", "SimulatedCluster", "InvalidInput"):
        assert described in reference
    for path in site.glob("*.html"):
        assert not _LOADED.search(path.read_text()), path
