"""Everything that one GPU can tell, in one command and at most twenty minutes.

    make gpu
    python -m benchmarks.one_gpu --device cpu --short

Without a GPU, or with ``--short``, models are the small ones of the zoo, and it shows that
everything works.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated

import torch
import typer

from benchmarks.machine import this_machine
from benchmarks.one_gpu.measuring import Bench
from benchmarks.one_gpu.page import page
from benchmarks.one_gpu.results import GpuTests, ModelResults, Results
from drlpp.cli.command_line import build_console, run_program
from drlpp.io.documents import write_atomically
from drlpp.models.task import Option
from drlpp.specs.device_choice import DeviceChoice

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

PUBLISHED: dict[str, dict[str, Option]] = {
    "gpt2": {"batch_size": 8, "dropout": 0.0},
    "vgg16": {"batch_size": 64},
    "gnmt8": {"dropout": 0.0},
}
"""What a GPU measures: options on top of the published sizes."""

_GPU_TESTS = "tests/runtime/test_gpu.py"
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


@app.command()
def main(
    device: Annotated[DeviceChoice, typer.Option(help="What workers compute on.")] = (
        DeviceChoice.AUTO
    ),
    out: Annotated[Path, typer.Option(help="Folder for results.json and page.md.")] = Path(
        "runs/one-gpu"
    ),
    minutes: Annotated[float, typer.Option(min=0, help="After which nothing is begun.")] = 18.0,
    workers: Annotated[int, typer.Option(min=2, help="They share the device.")] = 4,
    minibatches: Annotated[int, typer.Option(min=1, help="Of a measurement.")] = 20,
    budget: Annotated[int, typer.Option(min=1, help="Placements that the agent measures.")] = 12,
    short: Annotated[
        bool, typer.Option("--short", help="Small models; the default without a GPU.")
    ] = False,
    models: Annotated[str, typer.Option(help="Names in the zoo.")] = ",".join(PUBLISHED),
    tests: Annotated[bool, typer.Option(help=f"Begin with {_GPU_TESTS}.")] = True,
) -> None:
    """Test, profile, plan, measure, train and learn on one device."""
    begin = time.monotonic()
    console = build_console()
    kind = device.value
    if device is DeviceChoice.AUTO:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    small = short or kind == "cpu"
    results = Results(
        machine=str(this_machine()),
        device=torch.cuda.get_device_name() if kind == "cuda" else "processor",
        software=_software(kind),
        workers=workers,
    )

    def write(**found: object) -> None:
        nonlocal results
        results = results.model_copy(update={"seconds": time.monotonic() - begin, **found})
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(out / "results.json", results.model_dump_json(indent=1).encode())
        write_atomically(out / "page.md", page(results).encode())

    if tests:
        console.print(f"{_GPU_TESTS} …")
        write(tests=run_tests(60 * minutes / 2))
    done: dict[str, ModelResults] = {}

    def keep(found: ModelResults) -> None:
        done[found.model] = found
        write(models=tuple(done.values()))

    for model in models.split(","):
        bench = Bench(
            model=model,
            size="small" if small else "published",
            options={} if small else {**PUBLISHED.get(model, {})},
            workers=workers,
            device=kind,
            minibatches=minibatches,
            budget=budget,
            folder=out,
            deadline=begin + 60 * minutes,
            note=console.print,
            keep=keep,
        )
        bench.measure()
    console.print(page(results))
    console.print(f"written to {out / 'results.json'} and {out / 'page.md'}")
    failed = bool(results.tests and not results.tests.passed) or any(
        found.failures or any(run.failure for run in found.runs) for found in done.values()
    )
    raise typer.Exit(int(failed))


def run_tests(seconds: float) -> GpuTests:
    """Run the tests that need a GPU, in a process of their own and no longer than that."""
    begin = time.monotonic()
    command = (sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", _GPU_TESTS)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds)
    except subprocess.TimeoutExpired as ended:
        output = (ended.stdout or b"").decode(errors="replace")
        passed = len(re.findall(r"^\S+ PASSED", output, re.MULTILINE))
        return GpuTests(
            counts=f"{passed} passed, then ended after {seconds:.0f} s",
            passed=False,
            failed=tuple(re.findall(r"^(\S+) (?:FAILED|ERROR)", output, re.MULTILINE)),
            output=output[-20_000:],
            seconds=seconds,
        )
    lines = done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ["no output"]
    return GpuTests(
        counts=lines[-1],
        passed=done.returncode == 0,
        failed=tuple(_FAILED.findall(done.stdout)),
        output="" if done.returncode == 0 else (done.stdout + done.stderr)[-20_000:],
        seconds=time.monotonic() - begin,
    )


def _software(kind: str) -> str:
    """Say what computes: memory and versions of CUDA and NCCL of a GPU."""
    if kind == "cpu":
        return "no GPU"
    memory = torch.cuda.get_device_properties(0).total_memory
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return f"{memory / 1e9:.0f} GB, CUDA {torch.version.cuda}, NCCL {nccl}"


if __name__ == "__main__":
    run_program(app, "benchmarks.one_gpu")
