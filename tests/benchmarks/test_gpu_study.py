"""The study of one GPU: on processors it runs to its end, and what fails is said."""

import pytest

from benchmarks import gpu
from benchmarks.gpu import STUDY, ways


@pytest.mark.slow
def test_a_part_that_fails_is_noted_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(*_: object) -> None:
        raise RuntimeError("no room for a training")

    monkeypatch.setattr(gpu._Bench, "_train", train)
    monkeypatch.setattr(gpu, "ways", lambda parts: dict(list(ways(parts).items())[:1]))
    (case,) = STUDY.cases(None, short=True)
    found = STUDY.run(case.model_copy(update={"workers": 2, "minibatches": 2}))
    assert found.failures == {"training": "RuntimeError: no room for a training"}
    assert [run.name for run in found.runs if run.seconds] == [
        "plain PyTorch, float32",
        "plain PyTorch, float32, compiled",
        "plain PyTorch, bfloat16",
        "plain PyTorch, bfloat16, compiled",
        "one stage",
    ]
