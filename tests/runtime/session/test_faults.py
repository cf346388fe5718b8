"""Faults at random moments: told, survived, and nothing left behind; slow tests try many."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.endurance.faults.strikes import faults_during
from tests.endurance.faults.trials import FaultTrials, Trial
from tests.support.processes import temporary_files_in


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultTrials]:
    folder = tmp_path_factory.mktemp("faults")
    with temporary_files_in(folder):
        yield FaultTrials(folder)


def cases(marks: Any, kinds: dict[str, list[str]], seeds: Iterable[int]) -> list[Any]:
    return [
        pytest.param(during, kind, seed, marks=marks)
        for seed in seeds
        for during, found in kinds.items()
        for kind in found
    ]


EVERY = {during: faults_during(during) for during in ("training", "measuring")}


# TensorBoard's thread says so as well when it cannot write.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    ("during", "kind", "seed"),
    cases(pytest.mark.system, EVERY | {"measuring": ["server", "frozen"]}, [101])
    + cases(pytest.mark.slow, EVERY, range(5)),
)
def test_work_goes_on_bit_for_bit(trials: FaultTrials, during: str, kind: str, seed: int) -> None:
    trial: Trial = getattr(trials, during)(kind, seed)
    assert trial.as_expected, trial
