"""Programs that run as if most of what is installed were not."""

import re
from importlib.metadata import packages_distributions, requires


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
