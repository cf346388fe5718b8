"""Training without workers and hosts that are lost for good: nothing lost, nothing twice."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from drlpp.capturing.capture import CapturedModel
from drlpp.errors import HostLost
from drlpp.planners.replanning import Elastic, Replanner
from drlpp.runtime import PipelineTrainer, TrainerCallbacks
from tests.support.losable_hosts import FailingHost, LosableHost, LosableHosts
from tests.support.models.counting import BATCH_SIZE, every_sample
from tests.support.models.forked import largest_difference
from tests.support.training.elastic_trainings import (
    EPOCHS,
    METHODS,
    ONE,
    assert_each_sample_once_an_epoch,
    fit,
)
from tests.support.training.pipelines import in_a_row
from tests.support.training.placement_files import ADAM, file_of
from tests.support.training.strikes import Strikes, changes_in


@pytest.mark.system
@pytest.mark.parametrize("method", METHODS)
def test_a_lost_host_and_its_return_cost_no_sample(
    captured: CapturedModel, tmp_path: Path, method: str
) -> None:
    hosts = LosableHosts([2, 2])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose(), lambda: hosts.hosts[1].return_())
    result = fit(captured, hosts, strikes, tmp_path, method=METHODS[method])
    assert_each_sample_once_an_epoch(result)
    lost, returned = changes_in(tmp_path)
    assert (lost.given_up, lost.workers, lost.configuration) == ((2, 3), (0, 1), "1-1")
    assert (returned.returned, returned.configuration) == ((2, 3), "1-1-1-1")
    assert returned.epochs * 100 + returned.minibatches > lost.epochs * 100 + lost.minibatches > 0
    assert strikes.notes == [lost.text, returned.text]
    assert lost.reason == "host host-1 cannot be reached: workers 2, 3 are given up"


class _FlappingHost(LosableHost):
    """Seems to be there whenever somebody asks."""

    has_returned = True


@pytest.mark.system
def test_parts_of_a_checkpoint_and_a_host_that_only_seems_to_return(
    captured: CapturedModel, tmp_path: Path
) -> None:
    hosts = LosableHosts([2, 2], _FlappingHost)
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose())
    shared = tmp_path / "shared"
    result = fit(captured, hosts, strikes, tmp_path, checkpoints=shared)
    assert_each_sample_once_an_epoch(result)
    (lost,) = changes_in(tmp_path)
    assert (lost.given_up, lost.workers) == ((2, 3), (0, 1))
    (parts,) = [path for path in shared.iterdir() if path.is_dir()]
    assert len(list(parts.glob("worker-*"))) == 2


@pytest.mark.system
def test_a_worker_that_is_lost_once_is_replaced_and_one_that_cannot_be_is_given_up(
    captured: CapturedModel, tmp_path: Path
) -> None:
    hosts = LosableHosts([4], FailingHost)

    def kill() -> None:
        os.kill(hosts.hosts[0].process_ids[1], signal.SIGKILL)

    def kill_for_good() -> None:
        hosts.hosts[0].failures = 1000
        os.kill(hosts.hosts[0].process_ids[2], signal.SIGKILL)

    strikes = Strikes(tmp_path, kill, kill_for_good)
    assert_each_sample_once_an_epoch(fit(captured, hosts, strikes, tmp_path))
    once, first, second = changes_in(tmp_path)
    assert re.fullmatch(r"worker 1 \(stage 1\) was killed by SIGKILL.*: replaced", once.reason)
    assert first.reason.endswith(": replaced")
    assert re.fullmatch(r"worker 2.* was killed by SIGKILL.*: worker 2 is given up", second.reason)
    assert (once.configuration, first.configuration) == ("1-1-1-1", "1-1-1-1")
    assert (second.workers, second.configuration) == ((0, 1, 3), "1-1-1")


@pytest.mark.system
def test_too_few_workers_end_it_and_it_resumes_on_fewer(
    captured: CapturedModel, tmp_path: Path
) -> None:
    hosts = LosableHosts([2, 2])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose())
    with pytest.raises(HostLost, match=r"with --resume.*; 2 workers are left, and .* wants 3 at"):
        fit(captured, hosts, strikes, tmp_path, elastic=Elastic(3, 4))
    document = file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3), METHODS["stash"], ONE)
    trainer = PipelineTrainer(
        Replanner(document, captured.graph).file(2),
        model=captured,
        out=tmp_path,
        resume=True,
        observer=strikes.observer,
    )
    assert_each_sample_once_an_epoch(trainer.fit(every_sample(), epochs=EPOCHS))


class _DyingOnce(TensorDataset):
    """Loses a host when the given sample is read for the first time."""

    def __init__(self, lose: Callable[[], None], *tensors: Tensor) -> None:
        super().__init__(*tensors)
        self._lose: Callable[[], None] | None = lose

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        if index == 700 and self._lose is not None:
            self._lose, lose = None, self._lose
            lose()
        return super().__getitem__(index)


@pytest.mark.system
def test_before_the_first_checkpoint_a_loader_begins_anew(
    captured: CapturedModel, tmp_path: Path
) -> None:
    """Its own generator too: the order of the epochs is that of a training without a loss."""

    def fit(folder: Path, lose: Callable[[], None]) -> dict[str, Tensor]:
        data = every_sample().train
        generator = torch.Generator().manual_seed(4)
        dataset = _DyingOnce(lose, *data.inputs, data.targets)
        loader = DataLoader(dataset, BATCH_SIZE, shuffle=True, generator=generator)
        document = file_of(captured, in_a_row(captured.graph, 0, 1, 2, 3), METHODS["stash"], ADAM)
        trainer = PipelineTrainer(
            document, model=captured, elastic=Elastic(2, 4), out=folder, observer=quiet
        )
        return trainer.fit(loader, epochs=2).state_dict

    quiet = TrainerCallbacks(on_note=lambda note: None)
    hosts = LosableHosts([3, 1])
    with hosts.used():
        found = fit(tmp_path / "lost", lambda: hosts.hosts[1].lose())
    (lost,) = changes_in(tmp_path / "lost")
    assert (lost.epochs, lost.minibatches, lost.workers) == (0, 0, (0, 1, 2))
    # Of layers alone the gradient depends on no weight, so neither does Adam's step on a placement.
    whole = fit(tmp_path / "whole", lambda: None)
    assert largest_difference(found, whole) < 1e-9
