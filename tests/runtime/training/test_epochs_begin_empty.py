"""s is counted anew in every epoch, as ``docs/methods.md`` says: the pipeline drains in between."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from drlpp.capturing.capture import CapturedModel, capture
from drlpp.models.model_reference import ModelReference
from drlpp.runtime.deploying.run_commands import run_commands
from drlpp.runtime.ipc.protocol import Run
from drlpp.runtime.session import session as session_module
from drlpp.runtime.stage.weight_group import OWN
from drlpp.schedule.actions import Backward, Forward, MicrobatchId, Update
from tests.support.training.loading import placement_file, train

STAGES, MINIBATCHES = 3, 12
"""STAGES of the pipeline, MINIBATCHES of the data."""


@pytest.fixture(scope="module")
def captured() -> CapturedModel:
    return capture(ModelReference.named("tests.support.models.small:perceptron"))


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[int, Run]]:
    """The commands to workers, a segment of a run after the other."""
    found: list[Mapping[int, Run]] = []

    def recording(*arguments: Any, **options: Any) -> Iterator[dict[int, Run]]:
        for commands in run_commands(*arguments, **options):
            found.append(commands)
            yield commands

    monkeypatch.setattr(session_module, "run_commands", recording)
    return found


def differences(run: Run) -> list[int]:
    """s of every minibatch on a worker, counted in what it does: a run that is not cut."""
    versions: dict[MicrobatchId, int] = {}
    version, found = 0, []
    for action in run.actions:
        match action:
            case Forward(minibatch, microbatch):
                versions[minibatch, microbatch] = version
            case Backward(minibatch, microbatch):
                found.append(version - versions[minibatch, microbatch])
            case Update(new):
                version = new
    return found


def fills(rank: int, minibatches: int = MINIBATCHES) -> list[int]:
    """0, 1, … up to D − rank − 1."""
    return [min(minibatch, STAGES - rank - 1) for minibatch in range(minibatches)]


def test_every_epoch_counts_s_from_0(
    captured: CapturedModel, tmp_path: Path, sent: list[Mapping[int, Run]]
) -> None:
    train(placement_file(captured, 0, 1, 2), epochs=3, out=tmp_path)
    assert len(sent) == 3
    for epoch in sent:
        for rank, run in epoch.items():
            assert differences(run) == fills(rank)
            # PipeOptim looks as far ahead (eq. 5), from the newest weights there are.
            uses = [
                run.plans[0].weights[OWN].uses[minibatch, 0] for minibatch in range(MINIBATCHES)
            ]
            assert [use.forward_lead for use in uses] == fills(rank)
            newest = [max(minibatch - (STAGES - rank - 1), 0) for minibatch in range(MINIBATCHES)]
            assert [use.newest_in_forward for use in uses] == newest
            # The last update has seen all: nothing is in flight when the next epoch begins.
            assert [a.through for a in run.actions if isinstance(a, Update)][-1] == MINIBATCHES
