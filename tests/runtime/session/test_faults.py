"""Faults at random moments: told, survived, and nothing left behind.

`python -m tests.endurance.faults` does the same many times.
"""

from collections.abc import Iterator

import pytest

from drlpp.models.model_reference import ModelReference
from tests.endurance.faults.strikes import faults_during
from tests.endurance.faults.trials import FaultTrials
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
