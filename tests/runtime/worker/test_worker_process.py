"""A worker whose session has lost a file, whose memory is short, or whose model raises."""

import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from drlpp.capturing.capture import capture
from drlpp.errors import OutOfMemory
from drlpp.models.model_reference import ModelReference
from drlpp.placement.measurement import FailedMeasurement
from drlpp.runtime import ClusterSession
from drlpp.runtime.ipc.protocol import Release
from drlpp.runtime.worker.worker_process import _carry_out_next
from drlpp.schedule.method import Method
from tests.support.processes import limit_memory
from tests.support.training.pipelines import in_a_row

ROOT = Path(__file__).parents[3]
PROGRAM = """
import pickle
from multiprocessing import connection
from drlpp.runtime import ClusterSession

with ClusterSession("tests.support.models.small:perceptron", 1) as session:
    session.prepare()
    (host,) = session.hosts
    host._running[0].channel.connection.send_bytes(pickle.dumps(session.folder / "message-gone"))
    assert connection.wait([host._running[0].process.sentinel], 60)
    print(*(what.how for _, what in host.events([])))
"""


@pytest.mark.system
def test_it_says_what_is_gone_and_that_it_failed() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert done.stdout.strip() == "ended with exit code 1", done.stderr
    assert "worker 0 ends: its controller runs" in done.stderr
    assert "message-gone" in done.stderr


def test_it_tells_of_tensors_of_a_command_that_its_memory_does_not_hold() -> None:
    state: Any = None
    channel = Mock()
    channel.receive.side_effect = RuntimeError("DefaultCPUAllocator: can't allocate memory")
    _carry_out_next(3, state, channel)
    (answer,) = channel.send.call_args.args
    assert isinstance(answer, OutOfMemory)
    assert str(answer).startswith("worker 3: ")
    channel.receive.side_effect = EOFError()
    with pytest.raises(EOFError):
        _carry_out_next(3, state, channel)
    channel.send.assert_called_once()


@pytest.mark.system
def test_it_goes_on_after_a_command_that_its_memory_does_not_hold() -> None:
    with ClusterSession("tests.support.models.small:perceptron", 1) as session:
        session.prepare()
        (host,) = session.hosts
        channel = host._running[0].channel
        command = session.folder / "message-large"
        with command.open("wb") as file:
            file.truncate(2**30)
        limit_memory(session.process_ids[0])
        channel.connection.send_bytes(pickle.dumps(command))
        answer = channel.receive()
        assert isinstance(answer, OutOfMemory)
        assert not command.exists(), "it takes space until the session ends, mostly in memory"
        channel.send(Release())
        assert channel.receive() is None


WIDTH = 6


class FailsBackward(nn.Module):
    """Torch has no derivative of the incomplete gamma function by its first argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.second = nn.Linear(WIDTH, WIDTH)
        self.third = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.special.gammainc(F.softplus(self.first(x)), torch.ones(WIDTH))
        return self.third(torch.tanh(self.second(x)))


def fails_backward() -> tuple[nn.Module, Tensor]:
    return FailsBackward(), torch.randn(8, WIDTH)


def test_an_error_ends_the_measurement() -> None:
    """The second of three stages fails, and the others wait for what it will never send."""
    reference = ModelReference.named(f"{__name__}:fails_backward")
    # Capturing would refuse it already.
    captured = capture(reference, check=False)
    method = Method(schedule="gpipe", policy="sync", microbatches=4, recompute=True)
    with ClusterSession(captured, workers=3) as session:
        placement = in_a_row(session.graph, 0, 1, 2)
        begin = time.monotonic()
        outcome = session.measure(placement, minibatches=4, method=method)
        assert time.monotonic() - begin < 30
        assert isinstance(outcome, FailedMeasurement)
        assert outcome.failure == "error in the model"
        assert outcome.reason.startswith("worker 1: ")
        assert "derivative for 'igamma: input' is not implemented" in outcome.reason
