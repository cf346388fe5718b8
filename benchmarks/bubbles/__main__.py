"""How long do workers wait for a flush, with whole and with split backwards?

    python -m benchmarks.bubbles             # forty minutes, on a quiet machine
    python -m benchmarks.bubbles --short     # a minute, to see it work

Flushed 1F1B, ZB-H1 and ZB-V of this runtime, next to schedules of
``torch.distributed.pipelining``, train the same model with the same cuts on the same emulated
accelerators, in turns. The bubble is what an update takes beyond what its busiest worker computes.
The simulated one is that of the same schedule in the simulator, with the seconds that every stage's
passes took in the same run, and messages that take no time. The formula's is (P − 1)(F + B) for
1F1B, (P − 1)(F + I − W) for ZB-H1, with the seconds that passes took, and for ZB-V
2 max(2P − 1 − M, 0) passes, all equally long.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from pandas import DataFrame
from rich.console import Console

from benchmarks.bubbles.measuring import CONTENDERS, OF_TORCH, Contender, Sample, bench
from benchmarks.machine import this_machine
from benchmarks.models import BLOCKS, MODELS, SMALL_MODELS
from benchmarks.options import JsonOption
from benchmarks.report import terminal
from drlpp.cli.command_line import build_console, run_program
from drlpp.errors import InvalidInput
from drlpp.io.formatting import seconds_text

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)

Key = tuple[int, int, Contender]
"""(stages, microbatches, who)."""


@app.command()
def main(
    model: Annotated[str, typer.Option(help="; ".join(MODELS))] = "feed_forwards",
    stages: Annotated[str, typer.Option(help="How many, each time with as many workers.")] = "2,4",
    microbatches: Annotated[str, typer.Option(help="Of an update.")] = "4,8",
    updates: Annotated[int, typer.Option(min=1, help="Of a sample.")] = 12,
    repetitions: Annotated[int, typer.Option(min=1, help="Of everything, in turns.")] = 5,
    speed: Annotated[float, typer.Option(help="Of an accelerator, in cores.")] = 0.1,
    short: Annotated[bool, typer.Option("--short", help="A small model, one repetition.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Time flushed schedules with whole and with split backwards, and torch's beside them."""
    if model not in MODELS:
        raise InvalidInput(f"model {model!r}: expected one of {', '.join(MODELS)}")
    if short:
        updates, repetitions = 2, 1
    samples: dict[Key, list[Sample]] = defaultdict(list)
    # Microbatches divide the small model's batch as well.
    options = SMALL_MODELS[model] | {"batch_size": 8} if short else MODELS[model]
    progress = Console(stderr=True)
    for count in _numbers("stages", stages, most=BLOCKS // 2):
        with bench(model, options, count, speed) as workers:
            turns = [
                (parts, who)
                for parts in _numbers("microbatches", microbatches, most=int(options["batch_size"]))
                for who in CONTENDERS
            ]
            for repetition in range(repetitions):
                # There and back: what drifts hits all alike.
                for parts, who in turns if repetition % 2 == 0 else reversed(turns):
                    sample = workers.sample(who, parts, updates)
                    samples[count, parts, who].append(sample)
                    progress.print(
                        f"{count} stages, M = {parts}, {who}: {seconds_text(sample.seconds)} an "
                        f"update, bubble {sample.bubble:.1%}",
                        soft_wrap=True,
                    )
    if as_json:
        print(json.dumps(list(_plain(samples)), indent=1))
        return
    build_console().print(terminal(table_of(samples), "Bubbles", names=3))
    build_console().print(f"{this_machine()}; {model}, accelerators of {speed:g} cores")


def _numbers(name: str, text: str, most: int) -> list[int]:
    words = text.split(",")
    if not all(word.isdecimal() and 1 <= int(word) <= most for word in words):
        raise InvalidInput(f"{name} {text!r}: expected numbers from 1 to {most}, such as 2,4")
    numbers = [int(word) for word in words]
    if any(most % number for number in numbers):
        raise InvalidInput(f"{name} {text!r}: expected divisors of {most}")
    return numbers


def table_of(samples: Mapping[Key, Sequence[Sample]]) -> DataFrame:
    """Return medians over repetitions, and everybody's time over that of our flushed 1F1B.

    The last columns are medians over turns, of our time over that of torch's same schedule, and of
    what this has of waiting alone: of 1 + the bubble.
    """
    rows = []
    for (stages, microbatches, who), found in samples.items():
        first = samples[stages, microbatches, CONTENDERS[0]]
        seconds = _median([s.seconds for s in found])
        expected = [
            s.expected_bubble_seconds / s.busiest_seconds
            for s in found
            if s.expected_bubble_seconds is not None
        ]
        simulated = [
            s.simulated_seconds / s.busiest_seconds - 1
            for s in found
            if s.simulated_seconds is not None
        ]
        torchs = samples[stages, microbatches, OF_TORCH[who]] if who in OF_TORCH else ()
        rows.append(
            {
                "stages": str(stages),
                "M": str(microbatches),
                "schedule": str(who),
                "update": seconds_text(seconds),
                "busiest computes": seconds_text(_median([s.busiest_seconds for s in found])),
                "bubble": f"{_median([s.bubble for s in found]):.1%}",
                "simulated": f"{_median(simulated):.1%}" if simulated else "–",
                "by the formula": f"{_median(expected):.1%}" if expected else "–",
                "× 1f1b-flush": f"{seconds / _median([s.seconds for s in first]):.3f}",
                **_over_torch(found, torchs),
            }
        )
    return DataFrame(rows)


def _over_torch(ours: Sequence[Sample], theirs: Sequence[Sample]) -> dict[str, str]:
    pairs = list(zip(ours, theirs, strict=True)) if theirs else []
    ratios = {
        "× torch's": [one.seconds / other.seconds for one, other in pairs],
        "waiting × torch's": [(1 + one.bubble) / (1 + other.bubble) for one, other in pairs],
    }
    return {name: f"{_median(found):.3f}" if found else "–" for name, found in ratios.items()}


def _median(values: Sequence[float]) -> float:
    return statistics.median(values)


def _plain(samples: Mapping[Key, Sequence[Sample]]) -> Iterator[dict[str, object]]:
    for (stages, microbatches, who), found in samples.items():
        yield {
            "stages": stages,
            "microbatches": microbatches,
            "schedule": str(who),
            "samples": [asdict(sample) | {"bubble": sample.bubble} for sample in found],
        }


if __name__ == "__main__":
    run_program(app, "benchmarks.bubbles")
