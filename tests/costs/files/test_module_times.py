"""Profiles of runs elsewhere: a trace of torch.profiler, and tables of modules."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as profiler

from drlpp import InvalidInput, ModelReference
from drlpp.capturing.capture import CapturedModel, capture
from drlpp.costs.files.kineto_trace import read_trace
from drlpp.costs.files.module_times import profile_of_modules, read_module_times
from drlpp.costs.files.profile_files import read_profile
from tests.support.programs.shell import Shell

MODEL = "tests.exporting.decoder:decoder"


@pytest.fixture(scope="module")
def decoder() -> CapturedModel:
    return capture(ModelReference.named(MODEL, layers=2))


def event(cat: str, name: str, begin: float, seconds: float, thread: int = 1, **args: Any) -> dict:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "tid": thread,
        "args": args,
        "ts": begin * 1e6,
        "dur": seconds * 1e6,
    }


def call(name: str, begin: float, seconds: float) -> dict:
    return event("python_function", f"nn.Module: {name}", begin, seconds)


def operator(begin: float, seconds: float, number: int, inner: bool = True) -> list[dict]:
    """An operator, and one inside of it with the same number, as aten::linear has aten::t."""
    numbered = {"Sequence number": number, "Fwd thread id": 0}
    found = [event("cpu_op", "aten::linear", begin, seconds, **numbered)]
    if inner:
        found.append(event("cpu_op", "aten::t", begin, seconds / 2, **numbered))
    return found


def backward(begin: float, seconds: float, number: int | None) -> dict:
    args = {} if number is None else {"Sequence number": number, "Fwd thread id": 1}
    name = "AddmmBackward0" if number is not None else "torch::autograd::AccumulateGrad"
    return event(
        "cpu_op", f"autograd::engine::evaluate_function: {name}", begin, seconds, 2, **args
    )


def minibatch(begin: float, scale: float, first: int) -> list[dict]:
    """The decoder's embedding takes 1, layer k's up 2 + k and down 4, its own addition 0.5.

    The norm takes 0.25, the head 8; every backward twice as much, and accumulating 0.125.
    """
    spans: list[dict] = [
        call("Decoder_0", begin, 64 * scale),
        call("Embedding_0", begin, 2 * scale),
    ]
    took = [("Embedding", 1.0)]
    spans += operator(begin + 0.1 * scale, 1.0 * scale, first)
    at = begin + 3 * scale
    for k in range(2):
        spans.append(call(f"Layer_{k}", at, 20 * scale))
        for part, seconds in ((2 * k, 2.0 + k), (2 * k + 1, 4.0)):
            spans.append(call(f"Linear_{part}", at + 1 * scale, 5 * scale))
            spans += operator(at + 1.1 * scale, seconds * scale, first + len(took))
            took.append(("Linear", seconds))
            at += 6 * scale
        spans += operator(at + 1 * scale, 0.5 * scale, first + len(took), inner=False)
        took.append(("add", 0.5))
        at += 9 * scale
    for name, seconds in (("LayerNorm_0", 0.25), ("Linear_4", 8.0)):
        spans.append(call(name, at, 9 * scale))
        spans += operator(at + 0.1 * scale, seconds * scale, first + len(took))
        took.append((name, seconds))
        at += 9 * scale
    at = begin + 65 * scale
    # The loss, outside of the model, and the backward in the other order.
    spans += operator(at, 5 * scale, first + len(took))
    at += 6 * scale
    spans.append(backward(at, 3 * scale, first + len(took)))
    for number, (_, seconds) in reversed(list(enumerate(took))):
        at += 20 * scale
        spans.append(backward(at, 2 * seconds * scale, first + number))
        spans.append(backward(at + 18 * scale, 0.125 * scale, None))
    spans.append(event("user_annotation", "Optimizer.step#SGD.step", at + 40 * scale, 0.5 * scale))
    return spans


def written(path: Path, spans: list[dict]) -> Path:
    text = json.dumps({"traceEvents": [{"ph": "M", "name": "process_name"}, *spans]})
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


SELF = {
    "": 0.0,
    "tok_embeddings": 1.0,
    "layers.0": 0.5,
    "layers.0.up": 2.0,
    "layers.0.down": 4.0,
    "layers.1": 0.5,
    "layers.1.up": 3.0,
    "layers.1.down": 4.0,
    "norm": 0.25,
    "output": 8.0,
}


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_trace_gives_every_module_its_own_time(
    name: str, decoder: CapturedModel, tmp_path: Path
) -> None:
    """The median of three minibatches; the others are ten times as slow and as fast."""
    spans = minibatch(0, 10.0, 0) + minibatch(10_000, 1.0, 20) + minibatch(20_000, 0.1, 40)
    times = read_trace(written(tmp_path / name, spans), decoder.task.module)
    assert times.minibatches == 3
    assert times.forward == pytest.approx(SELF)
    expected = {name: 2 * seconds + (0.125 if name else 0) for name, seconds in SELF.items()}
    assert times.backward == pytest.approx(expected)
    assert times.update == pytest.approx(0.5)
    profile = profile_of_modules(times, decoder.graph, 8)
    of_module: dict[str, float] = {}
    for op, cost in zip(decoder.graph.operators, profile.operators, strict=True):
        of_module[op.module] = of_module.get(op.module, 0.0) + cost.forward_seconds
    assert of_module == pytest.approx({name: SELF[name] for name in of_module})
    assert sum(of_module.values()) == pytest.approx(sum(SELF.values()))
    assert profile.update_seconds_per_byte * decoder.graph.parameter_bytes == pytest.approx(0.5)


def test_kernels_count_in_place_of_operators(decoder: CapturedModel, tmp_path: Path) -> None:
    """A kernel of 7 s that the embedding launched, and one of 9 s of its backward."""
    spans = minibatch(0, 1.0, 0)
    began = next(
        s["ts"] for s in spans if "Backward0" in s["name"] and s["args"]["Sequence number"] == 0
    )
    for at, seconds, thread, number in ((0.2, 7.0, 1, 1), (began / 1e6 + 0.1, 9.0, 2, 2)):
        spans.append(
            event("cuda_runtime", "cudaLaunchKernel", at, 0.01, thread, correlation=number)
        )
        spans.append(event("kernel", "gemm", at + 5, seconds, 7, correlation=number))
    times = read_trace(written(tmp_path / "trace.json", spans), decoder.task.module)
    assert {name: s for name, s in times.forward.items() if s} == {
        "tok_embeddings": pytest.approx(7.0)
    }
    assert {name: s for name, s in times.backward.items() if s} == {
        "tok_embeddings": pytest.approx(9.0)
    }


def test_a_real_trace(decoder: CapturedModel, tmp_path: Path) -> None:
    """Torch's own: every module that computes has a time, and together no more than the model."""
    task = decoder.task
    assert task.loss is not None
    path = tmp_path / "trace.json"
    with profiler(activities=[ProfilerActivity.CPU], with_stack=True) as recorded:
        for _ in range(2):
            task.loss(task.module(*task.inputs), task.targets).backward()
    recorded.export_chrome_trace(str(path))
    times = read_trace(path, task.module)
    assert times.forward.keys() == SELF.keys()
    assert all(seconds > 0 for name, seconds in times.forward.items() if name)
    assert all(seconds > 0 for name, seconds in times.backward.items() if name)
    whole = [
        event["dur"] * 1e-6
        for event in json.loads(path.read_text())["traceEvents"]
        if event.get("name") == "nn.Module: Decoder_0"
    ]
    assert sum(times.forward.values()) < max(whole)
    task.module.zero_grad()
    assert torch.is_grad_enabled()


def test_what_is_missing_in_a_trace_is_said(decoder: CapturedModel, tmp_path: Path) -> None:
    module, path = decoder.task.module, tmp_path / "trace.json"
    whole = minibatch(0, 1.0, 0)
    for spans, message in (
        ([s for s in whole if "nn.Module" not in s["name"]], "with_stack=True"),
        ([s for s in whole if "Decoder" not in s["name"]], "no call of a Decoder"),
        ([s for s in whole if "evaluate" not in s["name"]], "no backward"),
    ):
        with pytest.raises(InvalidInput, match=message):
            read_trace(written(path, spans), module)
    path.write_text("{}")
    with pytest.raises(InvalidInput, match=r"is no trace of torch\.profiler"):
        read_trace(path, module)


def test_a_table_of_layers(decoder: CapturedModel, tmp_path: Path) -> None:
    """A layer's time is its operators', but for those of a module with a time of its own."""
    table = tmp_path / "layers.csv"
    table.write_text(
        "name,forward_ms,backward_ms\ntok_embeddings,1,2\nlayers.*,6,12\nlayers.1.up,5,5\noutput,3,6\n"
    )
    names = [name for name, _ in decoder.task.module.named_modules()]
    profile = profile_of_modules(read_module_times(table, names), decoder.graph, 8)
    took: dict[str, float] = {}
    for op, cost in zip(decoder.graph.operators, profile.operators, strict=True):
        first = ".".join(op.module.split(".")[:2])
        key = op.module if op.module == "layers.1.up" else first
        took[key] = took.get(key, 0.0) + 1e3 * cost.forward_seconds
    assert took == pytest.approx(
        {
            "tok_embeddings": 1,
            "layers.0": 6,
            "layers.1.up": 5,
            "layers.1": 6,
            "norm": 0,
            "output": 3,
        }
    )
    table.write_text("name,forward_ms,backward_ms\nblocks.*,1,2\n")
    with pytest.raises(InvalidInput, match=r"no module of the model is called 'blocks\.\*'"):
        read_module_times(table, names)


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, profile = tmp_path / "layers.csv", tmp_path / "profile.json"
    table.write_text("name,forward_ms,backward_ms\nlayers.*,6,12\n")
    shell = Shell(monkeypatch, capsys)
    code, _, error = shell("profile", MODEL, "--times", table, "-o", profile)
    assert code == 0, error
    assert sum(read_profile(profile).seconds) == pytest.approx(6 * 0.018)
    arguments = ("plan", MODEL, "--profile", profile, "--accelerators", 2, "--bandwidth", 1e9)
    assert shell(*arguments, "--method", "gpipe")[0] == 0
