"""The study of one GPU: on processors it runs to its end, and what fails is said."""

import time

import pytest

from benchmarks import gpu
from benchmarks.gpu import STUDY, Case, Found, Run, _Bench, ways


def test_nothing_is_begun_too_late() -> None:
    bench = _Bench(Case(model="gpt2", size="small", device="cpu"), time.monotonic())
    bench.section("capture", bench.capture)
    assert bench.found == {"failures": {"capture": "no time was left"}, "runs": ()}


def test_tables_have_ratios_and_failures() -> None:
    plain = Run(name="plain PyTorch, float32", placement="", precision="float32", seconds=0.1)
    piped = Run(
        name="stashing",
        placement="1-1",
        precision="float32",
        seconds=0.2,
        busiest_seconds=0.16,
        computing_seconds=0.25,
        simulated_seconds=0.18,
        memory_bytes=3 * 10**9,
        simulated_memory_bytes=2e9,
    )
    predicted = piped.model_copy(update={"name": "PipeOptim", "seconds": 0.22})
    failed = Run(name="flushed", placement="1-1", precision="float32", failure="out of memory")
    found = Found(
        case=Case(model="vgg16", size="published", device="cuda"),
        machine="a processor",
        gpu="a GPU",
        runs=(plain, piped, predicted, failed),
        links=((10**6, 1e-3),),
        losses=(2.0, 3.0),
        failures={"agent": "no time was left"},
    )
    of_ways, messages, models = STUDY.table([found]).values()
    assert of_ways.iloc[1].tolist()[1:] == [
        *("1-1", "200.00", "2.000×", "1.250×", "0.800×", "0.900×", "3.00", "2.00")
    ]
    assert messages.iloc[0].tolist() == ["1,000.0", "1,000", "1.00"]
    assert models["loss of a training"].tolist() == ["2 to 3"]
    said = STUDY.said([found])
    assert "vgg16: flushed failed: out of memory." in said
    assert "vgg16: agent failed: no time was left." in said
    assert "PipeOptim takes 1.100 times as long as stashing" in said


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
