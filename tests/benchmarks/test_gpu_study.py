"""The study of one GPU: on processors it runs to its end, and what fails is said."""

import pytest

from benchmarks import gpu
from benchmarks.gpu import STUDY, ways


@pytest.mark.slow
def test_a_part_that_fails_is_noted_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def learn_placement(*_: object, **__: object) -> None:
        raise RuntimeError("no room for an agent")

    monkeypatch.setattr(gpu, "learn_placement", learn_placement)
    monkeypatch.setattr(gpu, "ways", lambda parts: dict(list(ways(parts).items())[:1]))
    (case,) = STUDY.cases(None, short=True)
    found = STUDY.run(case.model_copy(update={"workers": 2, "minibatches": 2}))
    assert found.failures == {"agent": "RuntimeError: no room for an agent"}
    assert [run.name for run in found.runs if run.seconds] == [
        "plain PyTorch, float32",
        "plain PyTorch, bfloat16",
        "one stage",
    ]
    assert found.losses[1] < found.losses[0]
