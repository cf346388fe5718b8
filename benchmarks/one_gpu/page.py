"""The results as a page of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.one_gpu.results import ModelResults, Results, Run
from drlpp.racing.rivals import PLAIN


def page(results: Results) -> str:
    """Return all results for people to read."""
    return (
        "\n".join([*_head(results), *(line for m in results.models for line in _model(m))]) + "\n"
    )


def _head(results: Results) -> Iterator[str]:
    yield "# One GPU"
    yield ""
    yield (
        f"{results.device} ({results.software}), shared by {results.workers} workers; "
        f"{results.machine}. Everything took {results.seconds / 60:.1f} minutes."
    )
    yield ""
    tests = results.tests
    if tests is None:
        yield "The tests for GPUs were left out."
    else:
        yield f"`pytest tests/runtime/test_gpu.py`, {tests.seconds:.0f} s: {tests.counts}"
        yield from (f"- failed: `{name}`" for name in tests.failed)


def _model(found: ModelResults) -> Iterator[str]:
    options = ", ".join(f"{name}={value}" for name, value in found.options.items())
    yield from ("", f"## {found.model}", "")
    yield (
        f"In its {found.size} size: {found.operators} operators, "
        f"{found.parameter_bytes / 4e6:.1f} million weights"
        f"{f' ({options})' if options else ''}. Captured in {found.capture_seconds:.1f} s, "
        f"profiled in {found.profile_seconds:.1f} s: {1e3 * found.operators_seconds:.1f} ms for "
        f"all operators one after the other. Everything took {found.seconds:.0f} s."
    )
    if found.runs:
        yield ""
        yield from _table(
            (
                *("way", "placement", "ms", "over plain", "over busiest worker"),
                *("over all computing", "simulated", "memory, GB", "simulated, GB"),
            ),
            (_row(run, found.runs) for run in found.runs),
        )
        yield ""
        yield (
            "What a worker computes includes the time that others had the device in between. The "
            "simulator lets workers that share a device compute in turns. Over plain is over plain "
            "PyTorch in the same precision."
        )
        yield from ("", *_costs(found.runs))
    if found.links:
        yield ""
        yield from _table(
            ("message, kB", "µs", "GB/s"),
            (
                (
                    f"{link.bytes_ / 1e3:,.1f}",
                    f"{1e6 * link.seconds:,.0f}",
                    f"{link.bytes_ / link.seconds / 1e9:.2f}" if link.seconds else "–",
                )
                for link in found.links
            ),
        )
    yield ""
    if found.losses:
        first, last = found.losses
        fell = "fell" if last < first else "**did not fall**"
        yield f"- Training on one minibatch: the loss {fell} from {first:.4g} to {last:.4g}."
    if found.learned:
        learned = found.learned
        yield (
            f"- The agent measured {learned.measured} placements in {learned.took_seconds:.0f} s: "
            f"{learned.placement} takes {1e3 * learned.seconds:.2f} ms."
        )
    for section, why in found.failures.items():
        yield f"- **{section}** did not end: {why}"


def _row(run: Run, runs: Sequence[Run]) -> tuple[str, ...]:
    if run.seconds is None:
        return (run.name, run.placement, f"failed: {run.failure}", *("–",) * 6)
    precision = "bfloat16" if "bfloat16" in run.method or "bfloat16" in run.name else "float32"
    plain = {one.name: one.seconds for one in runs}.get(f"{PLAIN}, {precision}")
    return (
        run.name,
        run.placement or "–",
        f"{1e3 * run.seconds:.2f}",
        _ratio(run.seconds, plain),
        _ratio(run.seconds, run.busiest_seconds),
        _ratio(run.seconds, run.computing_seconds),
        _ratio(run.simulated_seconds, run.seconds),
        f"{run.memory_bytes / 1e9:.2f}" if run.memory_bytes else "–",
        f"{run.simulated_memory_bytes / 1e9:.2f}" if run.simulated_memory_bytes else "–",
    )


def _costs(runs: Sequence[Run]) -> Iterator[str]:
    """Say what prediction, recomputing and bfloat16 cost, where both sides were measured."""
    seconds = {run.name: run.seconds for run in runs}
    for what, of, over in (
        ("Prediction costs", "PipeOptim", "stashing"),
        ("Recomputing costs", "stashing, recomputing", "stashing"),
        ("bfloat16 saves", "PipeOptim, recomputing, bfloat16", "PipeOptim, recomputing"),
        ("Without a flush", "PipeOptim", "flushed 1F1B"),
    ):
        found, reference = seconds.get(of), seconds.get(over)
        if found and reference:
            yield f"- {what}: {of} takes {found / reference:.3f} times as long as {over}."


def _ratio(value: float | None, reference: float | None) -> str:
    return f"{value / reference:.3f}×" if value and reference else "–"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    for cells in (headings, ["---"] * len(headings), *rows):
        yield "| " + " | ".join(cells) + " |"
