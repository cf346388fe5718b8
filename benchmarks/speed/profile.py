"""How long does a profile take, with blocks that repeat timed a few times and with all of them?

    python -m benchmarks.speed profile

Every model is profiled both ways, in turns, on workers of one session. *All operators* is the
median of forward and backward of all operators together, of which the ratio should be 1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Annotated
from unittest.mock import patch

import typer
from pandas import DataFrame

from benchmarks.report import terminal
from drlpp.capturing.blocks import Shortened, shorten
from drlpp.capturing.capture import CapturedModel
from drlpp.cli.command_line import build_console
from drlpp.costs.profile import Profile
from drlpp.models.model_reference import ModelReference
from drlpp.models.zoo import SMALL
from drlpp.runtime import ClusterSession

_LAYERS = {"gpt2": 48, "llama": 48, "t5": 24}
"""Of models that are deeper when they are published in other sizes; the others as they are."""


@dataclass
class _Way:
    """One of the two ways to profile."""

    shorten: Callable[[CapturedModel], Shortened]
    seconds: list[float] = field(default_factory=list)
    profiles: list[Profile] = field(default_factory=list)

    @property
    def operators_seconds(self) -> float:
        return median(sum(profile.seconds) for profile in self.profiles)


def main(
    models: Annotated[str, typer.Option(help="Names in the zoo.")] = "gpt2,llama,t5,bert48",
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes of every operator.")] = 20,
    times: Annotated[int, typer.Option(min=1, help="Profiles of each kind.")] = 3,
) -> None:
    """Profile models of many equal layers both ways."""
    rows = [_row(model, repeats, times) for model in models.split(",")]
    build_console().print(terminal(DataFrame(rows)))


def _row(model: str, repeats: int, times: int) -> dict[str, str]:
    options = {**SMALL[model], **({"layers": _LAYERS[model]} if model in _LAYERS else {})}
    ways = _Way(_whole), _Way(shorten)
    with ClusterSession(ModelReference.named(model, **options), workers=2) as session:
        for _ in range(times):
            for way in ways:
                with patch("drlpp.runtime.session.session.shorten", way.shorten):
                    begin = time.perf_counter()
                    way.profiles.append(session.profile(repeats)[0])
                    way.seconds.append(time.perf_counter() - begin)
    every, few = ways
    return {
        "model": model,
        "operators": str(len(every.profiles[0].graph)),
        "timed": str(few.profiles[0].timed_operators),
        "all timed, s": _listed(every.seconds),
        "few timed, s": _listed(few.seconds),
        "ratio": f"{median(few.seconds) / median(every.seconds):.2f}",
        "all operators": f"{few.operators_seconds / every.operators_seconds:.3f}",
    }


def _whole(captured: CapturedModel) -> Shortened:
    return Shortened(captured, tuple((op.id,) for op in captured.graph.operators))


def _listed(seconds: Sequence[float]) -> str:
    return f"{median(seconds):.1f}"
