"""Running a program where drlpp is not installed: whoever imports it fails."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.elsewhere.without_drlpp import environment_in


def torchrun(
    processes: int, *command: str, folder: Path, check: bool = True, drlpp: bool = False
) -> subprocess.CompletedProcess[str]:
    """Start a program on so many ranks; ``folder`` is theirs to work in, and to import from.

    With ``drlpp`` it may be imported after all.
    """
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", str(processes), *command),
        ],
        cwd=folder,
        env=environment_in(folder, without_drlpp=not drlpp),
        capture_output=True,
        text=True,
        timeout=240,
    )
    if check:
        assert done.returncode == 0, done.stdout + done.stderr
    return done
