"""Learning a placement in one call."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from fake_measurer import FakeMeasurer, chain
from rich.console import Console

from drlpp.agents import AGENTS, learn_placement
from drlpp.envs import MeasurementMemory
from drlpp.measurement import Outcome
from drlpp.placement import Placement


class Swallowing(FakeMeasurer):
    """Ctrl-C comes while something runs that ignores exceptions."""

    def measure(self, placement: Placement, minibatches: int = 30) -> Outcome:
        if len(self.measured) == 3:
            with suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        return super().measure(placement, minibatches)


def test_ctrl_c_is_not_lost_where_the_exception_is(tmp_path: Path) -> None:
    memory = MeasurementMemory(Swallowing(chain(8)))
    before = signal.getsignal(signal.SIGINT)
    finished = learn_placement(
        memory,
        tmp_path,
        hyperparameters=AGENTS["tuned"],
        budget=30,
        seed=0,
        console=Console(quiet=True),
    )
    assert not finished
    assert 3 < memory.distinct < 30
    assert signal.getsignal(signal.SIGINT) == before
