"""Where processes run that import from a folder, and cannot import drlpp."""

from __future__ import annotations

import os
from pathlib import Path

_REFUSING = """
import sys

class _Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "drlpp":
            raise ImportError("drlpp is not installed here")

sys.meta_path.insert(0, _Refusing())
"""


def environment_in(folder: Path, *, without_drlpp: bool) -> dict[str, str]:
    """Return an environment of one thread for processes that import from ``folder``.

    Args:
        folder: theirs; what refuses drlpp is written there.
        without_drlpp: whether importing drlpp fails in them.
    """
    refusing = folder / "without_drlpp"
    refusing.mkdir(parents=True, exist_ok=True)
    (refusing / "sitecustomize.py").write_text(_REFUSING if without_drlpp else "")
    known = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join([str(refusing), str(folder), known])
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
