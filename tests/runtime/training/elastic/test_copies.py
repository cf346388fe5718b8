"""Training that continues from copies on its hosts, and on the next."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from benchmarks.host_loss.losable_hosts import LosableHosts
from drlpp.capturing.capture import CapturedModel
from tests.support.models.forked import largest_difference
from tests.support.training.elastic_trainings import (
    COPIES,
    PEERS,
    assert_each_sample_once_an_epoch,
    fit,
)
from tests.support.training.strikes import Strikes, changes_in


@pytest.mark.system
@pytest.mark.parametrize("options", [COPIES, PEERS], ids=["copies", "peer copies"])
def test_copies_continue_with_what_was_in_flight_when_a_worker_is_lost(
    captured: CapturedModel, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Twice, so that the copies which were gathered are replaced by others, and bit for bit."""
    hosts = LosableHosts([2, 2])

    def kill() -> None:
        os.kill(hosts.hosts[1].process_ids[0], signal.SIGKILL)

    # At once: the second follows on the last copies before a checkpoint.
    strikes = Strikes(tmp_path / "killed", kill, kill, seconds=0)
    found = fit(captured, hosts, strikes, tmp_path / "killed", **options)
    once, twice = changes_in(tmp_path / "killed")
    assert (once.source, twice.source) == ("copies on the hosts",) * 2
    assert all(change.configuration == "1-1-1-1" for change in (once, twice))
    assert (0, 0) < (once.epochs, once.minibatches) < (twice.epochs, twice.minibatches)
    assert_each_sample_once_an_epoch(found)
    whole = fit(captured, hosts, Strikes(tmp_path / "whole"), tmp_path / "whole", **options)
    assert largest_difference(found.state_dict, whole.state_dict) == 0.0


@pytest.mark.system
@pytest.mark.parametrize(("counts", "lines"), [([4], 1), ([3, 1], 0)])
def test_peer_copies_that_no_other_host_can_keep_are_told(
    captured: CapturedModel, tmp_path: Path, counts: list[int], lines: int
) -> None:
    """Once, also if the workers are replaced."""
    hosts = LosableHosts(counts)
    strikes = Strikes(tmp_path, lambda: os.kill(hosts.hosts[0].process_ids[1], signal.SIGKILL))
    fit(captured, hosts, strikes, tmp_path, **PEERS)
    *told, replaced = strikes.notes
    assert replaced.startswith("worker 1 ")
    assert [note.split(",")[0] for note in told] == lines * [
        "peer copies protect nothing here: all workers are on host host-0"
    ]


@pytest.mark.system
def test_two_hosts_that_are_no_neighbours_are_lost_at_once(
    captured: CapturedModel, tmp_path: Path
) -> None:
    hosts = LosableHosts([1, 1, 1, 1])

    def lose() -> None:
        for number in (2, 0):
            hosts.hosts[number].lose()

    strikes = Strikes(tmp_path, lose)
    assert_each_sample_once_an_epoch(fit(captured, hosts, strikes, tmp_path, **PEERS))
    (lost,) = changes_in(tmp_path)
    assert (lost.given_up, lost.workers, lost.configuration) == ((0, 2), (1, 3), "1-1")
    assert lost.source == "copies on the hosts"
    assert lost.reason == (
        "host host-0 cannot be reached: worker 0 is given up; "
        "host host-2 cannot be reached: worker 2 is given up"
    )


@pytest.mark.system
@pytest.mark.parametrize(
    ("often", "place", "lost_minibatches", "why_not"),
    [
        ((3, 5), 5, 1, "stage 2 has no replica on a host that is left"),
        ((4, 9), 9, 0, "no copy is newer"),
    ],
    ids=["no copy left", "no copy newer"],
)
def test_the_checkpoint_continues_where_copies_cannot(
    captured: CapturedModel,
    tmp_path: Path,
    often: tuple[int, int],
    place: int,
    lost_minibatches: int,
    why_not: str,
) -> None:
    """Struck after the third of what is kept: copies, checkpoint, copies; or checkpoint last."""
    hosts = LosableHosts([2, 2])
    strikes = Strikes(tmp_path, lambda: hosts.hosts[1].lose(), seconds=0)
    copies, checkpoints = often
    assert_each_sample_once_an_epoch(
        fit(captured, hosts, strikes, tmp_path, copy_every=copies, checkpoint_every=checkpoints)
    )
    (lost,) = changes_in(tmp_path)
    assert (lost.minibatches, lost.lost_minibatches) == (place, lost_minibatches)
    assert lost.source == f"the last checkpoint ({why_not})"
    assert f"continues from {lost.source} at " in strikes.notes[0]
