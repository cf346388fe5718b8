"""Faults at random moments: told, survived, and nothing left behind.

`python -m tests.endurance.faults` does the same many times.
"""

import tempfile
from collections.abc import Iterator

import pytest

from drlpp.models.model_reference import ModelReference
from tests.endurance.faults.__main__ import attempted
from tests.endurance.faults.leftovers import everything_gone
from tests.endurance.faults.strikes import faults_during
from tests.endurance.faults.trials import FaultTrials, Trial
from tests.support.processes import temporary_files_in


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultTrials]:
    folder = tmp_path_factory.mktemp("faults")
    model = ModelReference.named("tests.support.models.small:perceptron", layers=2)
    with temporary_files_in(folder):
        yield FaultTrials(model, 1, folder, patience_seconds=5.0)


# TensorBoard's thread says so as well when it cannot write.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.system
@pytest.mark.parametrize("kind", faults_during("training"))
def test_a_training_goes_on_bit_for_bit(trials: FaultTrials, kind: str) -> None:
    trial = trials.training(kind, seed=101)
    assert trial.as_expected, trial


@pytest.mark.system
@pytest.mark.parametrize("kind", ["server", "frozen"])
def test_a_session_goes_on_measuring(trials: FaultTrials, kind: str) -> None:
    trial = trials.measuring(kind, seed=101)
    assert trial.as_expected, trial


def test_a_fault_that_never_happens_is_a_trial_that_is_not_as_expected() -> None:
    def ends_first() -> Trial:
        raise RuntimeError("20 trainings ended before the fault")

    trial = attempted("killed", "training", ends_first)
    assert not trial.as_expected
    assert "before the fault" in trial.reason


def test_a_trial_notices_what_is_left_behind(trials: FaultTrials) -> None:
    """That these tests can fail."""
    with everything_gone() as left:
        folder = tempfile.mkdtemp(prefix="drlpp-session-")
    assert left == [folder]
