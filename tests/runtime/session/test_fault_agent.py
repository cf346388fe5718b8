"""Runs of the agent that are killed, and what counts as kept."""

import tempfile
from pathlib import Path

import pytest

from drlpp.placement.measurement import FailedMeasurement
from drlpp.placement.measurements_file import Entry
from drlpp.placement.placement import Placement
from tests.endurance.faults.agent import AgentTrials, is_kept


@pytest.mark.slow
def test_a_killed_run_loses_and_repeats_nothing() -> None:
    # The names of sockets may not be long.
    with tempfile.TemporaryDirectory(prefix="drlpp-faults-") as folder:
        trial = AgentTrials(Path(folder)).trial("controller", seed=3)
    assert trial.as_expected, trial


def test_lost_and_repeated_measurements_are_noticed() -> None:
    entries = [
        Entry(
            placement=Placement.from_assignment([0] * count, (0,)),
            outcome=FailedMeasurement(failure="worker_lost", reason="gone"),
        )
        for count in range(1, 15)
    ]
    assert is_kept(entries[:5], entries)
    assert not is_kept(entries[:5], entries[1:])
    assert not is_kept(entries[:5], [*entries, entries[0]])
    assert not is_kept(entries[:5], entries[:6])
