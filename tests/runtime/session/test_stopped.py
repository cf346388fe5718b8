"""Processes that are stopped and continued or not; the fork server that is killed or stopped."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import DataError
from drlpp.placement.measurement import Measurement
from drlpp.runtime import ClusterSession, PipelineTrainer
from drlpp.runtime.ipc.protocol import Run
from drlpp.runtime.session.worker_group import WorkerGroup
from tests.support.processes import children_of, descendants, wait_until_gone
from tests.support.training.loading import data_for, placement_file
from tests.support.training.pipelines import in_a_row

ROOT = Path(__file__).parents[3]
PROGRAM = """
from drlpp.runtime import ClusterSession
from tests.support.training.pipelines import in_a_row
with ClusterSession("tests.support.models.small:perceptron", 2, timeout_seconds=3) as session:
    deployment = session.deploy(in_a_row(session.graph, 0, 1))
    session.run(deployment, 4)
    print("begins", flush=True)
    session.run(deployment, 1500)
    print("ends")
"""


@pytest.mark.system
def test_a_program_that_is_stopped_and_continued_has_not_hung() -> None:
    """Ctrl-Z stops its workers as well, so nobody has said anything for longer than allowed."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "begins\n"
        time.sleep(0.3)
        family = [program.pid, *descendants(program.pid)]
        for number, seconds in ((signal.SIGSTOP, 4.5), (signal.SIGCONT, 0)):
            for process in family:
                os.kill(process, number)
            time.sleep(seconds)
        assert program.stdout.read() == "ends\n"


def test_what_was_measured_over_a_stop_is_measured_again(
    captured: CapturedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = 0
    command = WorkerGroup.command

    def stopped_once(group: WorkerGroup, commands: Any, *given: Any, **options: Any) -> object:
        nonlocal runs
        if isinstance(next(iter(commands.values())), Run):
            runs += 1
            group.stops += runs == 1
        return command(group, commands, *given, **options)

    with ClusterSession(captured, 2) as session, monkeypatch.context() as patch:
        patch.setattr(WorkerGroup, "command", stopped_once)
        assert isinstance(session.measure(in_a_row(captured.graph, 0, 1), 4), Measurement)
        assert runs == 2
        session.measure(in_a_row(captured.graph, 0, 1), 4)
        assert runs == 3


class _Unhurried(TensorDataset):
    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        time.sleep(0.02)
        return tuple(super().__getitem__(index))


def _stop_a_loader_process(begun: set[int], stopped: list[int]) -> None:
    while not stopped:
        time.sleep(0.1)
        for child in set(children_of(os.getpid())) - begun:
            # Of the server that workers are forked from, and its helper, there are more files.
            if "multiprocessing" not in Path(f"/proc/{child}/cmdline").read_text():
                os.kill(child, signal.SIGSTOP)
                stopped.append(child)
                return


@pytest.mark.system
@pytest.mark.timeout(60)
def test_a_frozen_process_of_a_loader_is_given_up_where_the_loader_has_a_limit(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """torch asks it to end, which it does not hear, and Python would wait for it at its exit."""
    data = data_for(captured)
    dataset = _Unhurried(data.train.inputs[0], data.train.targets)
    stopped: list[int] = []
    strike = threading.Thread(
        target=_stop_a_loader_process, args=(set(children_of(os.getpid())), stopped), daemon=True
    )
    strike.start()
    trainer = PipelineTrainer(placement_file(captured, 0, 1), out=tmp_path / "out")
    with pytest.raises(DataError, match="timed out after 3"):
        trainer.fit(DataLoader(dataset, 8, num_workers=1, timeout=3), epochs=50)
    strike.join(10)
    (tmp_path / "empty").mkdir()
    assert not wait_until_gone(set(stopped), tmp_path / "empty")
