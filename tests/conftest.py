"""What all tests have in common: where temporary files go."""

import gc
import os
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing import util

import pytest
from hypothesis import settings

# Tests run side by side, one process for each core. Several threads in each would spend most of
# their time waiting for cores. Set before torch and numpy are imported; children inherit it.
os.environ["OMP_NUM_THREADS"] = "1"
# Searches of an agent would start processes of their own on all cores.
os.environ["LOKY_MAX_CPU_COUNT"] = "1"
# Every race would compile plain PyTorch, which takes longer than the race; compiled stages do not
# go by it.
os.environ["TORCH_COMPILE_DISABLE"] = "1"

# How long an example takes says how busy the machine is. CI always tries the same ones, so that
# what fails there is the change; other runs look for new ones.
settings.register_profile("untimed", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("untimed")

_AFTER_MULTIPROCESSING = -200
"""Which removes a folder of its own in there, at -100."""


def pytest_collection_finish() -> None:
    """Let no collection of garbage look at what was imported, which lives to the end.

    Most of what tests make afterwards lives on, too: looking at it less often saves a twentieth.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1_000)


@pytest.fixture(scope="session", autouse=True)
def _temporary_files() -> Iterator[None]:
    """Torchrun, stable-baselines3 and killed processes leave files.

    Not a folder of pytest's, in whose depth names of sockets get too long.
    """
    folder = tempfile.mkdtemp(prefix="tests-")
    util.Finalize(
        None,
        shutil.rmtree,
        args=[folder],
        kwargs={"ignore_errors": True},
        exitpriority=_AFTER_MULTIPROCESSING,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setitem(os.environ, "TMPDIR", folder)
        patch.setitem(os.environ, "XDG_CACHE_HOME", f"{folder}/cache")
        yield


@pytest.fixture(scope="session", autouse=True)
def _measured_once() -> Iterator[None]:
    """Take every window of a session for steady.

    What is small looks unsteady while other tests run, and would be measured up to three times, as
    often as the machine is busy. Tests of that decide themselves what is steady.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("drlpp.runtime.session.measuring.is_steady", lambda *_: True)
        yield
