"""Running a program where drlpp is not installed: whoever imports it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_BLOCK = """
import sys

class _Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "drlpp":
            raise ImportError("drlpp is not installed here")

sys.meta_path.insert(0, _Blocker())
"""


def torchrun(
    processes: int, *command: str, folder: Path, check: bool = True, drlpp: bool = False
) -> subprocess.CompletedProcess[str]:
    """Start a program on so many ranks; ``folder`` is theirs to work in, and to import from.

    With ``drlpp`` it may be imported after all.
    """
    block = folder / "without_drlpp"
    block.mkdir(exist_ok=True)
    (block / "sitecustomize.py").write_text("" if drlpp else _BLOCK)
    path = os.pathsep.join([str(block), str(folder), os.environ.get("PYTHONPATH", "")])
    environment = dict(os.environ, PYTHONPATH=path, OMP_NUM_THREADS="1")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(processes), *command),
        ],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done
