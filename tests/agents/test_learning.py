"""Learning a placement in one call."""

from __future__ import annotations

import io
import os
import signal
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from drlpp.agents import AGENTS, learn_placement
from drlpp.envs import MeasurementMemory
from drlpp.placement.execution_plan import ExecutionPlan
from drlpp.placement.measurement import Outcome
from tests.support.planning.fake_measurer import FakeMeasurer, chain


class Swallowing(FakeMeasurer):
    """Ctrl-C comes while something runs that ignores exceptions."""

    def measure(self, plan: ExecutionPlan, minibatches: int = 30) -> Outcome:
        if len(self.measured) == 3:
            with suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
        return super().measure(plan, minibatches)


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


def test_with_nothing_to_choose_it_ends_at_once(tmp_path: Path) -> None:
    measurer = FakeMeasurer(chain(1))
    memory = MeasurementMemory(measurer, repetitions=2)
    console = Console(record=True, quiet=False, file=io.StringIO(), width=200)
    options = {"hyperparameters": AGENTS["guided"], "seed": 0, "console": console}
    assert learn_placement(memory, tmp_path, budget=100, **options)
    assert sorted(p.configuration for p in memory.outcomes) == ["1", "2", "3", "4"]
    assert len(measurer.measured) == 2 * 4
    assert "nothing to choose: the model is one operator" in console.export_text()
    assert learn_placement(memory, tmp_path, budget=100, **options), "begun again"
    assert len(measurer.measured) == 2 * 4
