"""Programs that run as if most of what is installed were not."""

import os
import re
import subprocess
import sys
from importlib.metadata import packages_distributions, requires
from pathlib import Path


def without_packages(program: str, keep: str) -> str:
    """Return a program in which only some distributions, and what they need, can be imported.

    Args:
        program: Python code.
        keep: the distributions, separated by spaces.
    """
    kept, waiting = {"drlpp"}, [_normal(name) for name in keep.split()]
    while waiting:
        if (name := waiting.pop()) not in kept:
            kept.add(name)
            needed = [one for one in requires(name) or () if "extra ==" not in one]
            waiting += [_normal(re.split(r"[^\w.-]", one)[0]) for one in needed]
    refused = {
        module
        for module, distributions in packages_distributions().items()
        if not kept & {_normal(name) for name in distributions}
    }
    return _HEAD.format(refused=sorted(refused)) + program


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


_HEAD = """
import sys

class _Refusing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ModuleNotFoundError(f"{{name}} is refused", name=name)

REFUSED = set({refused!r})
sys.meta_path.insert(0, _Refusing())
"""


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
