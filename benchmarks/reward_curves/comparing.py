"""drl-pp's figure 5 for several models, agents and seeds, and where the agents end.

    python -m benchmarks.reward_curves compare --results runs/curves.jsonl \\
        --picture docs/figures/mended-curves.png --document benchmarks/reward_curves/README.md

Every line of the results is a run, written as soon as it is done; the same command continues.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib.figure import Figure
from pandas import DataFrame
from rich.progress import track

from benchmarks.options import DocumentOption
from benchmarks.report import markdown, terminal, write_between
from benchmarks.reward_curves.drawing import save
from benchmarks.reward_curves.runs import MODELS, Run, planned_seconds, run
from drlpp.cells import read_results_of
from drlpp.cli.command_line import build_console
from drlpp.io.json_lines import append

BEGIN = "<!-- reward_curves: written by benchmarks.reward_curves -->"
END = "<!-- end of reward_curves -->"

_COMPARED = {"data-parallel": ":", "exact": "--"}
"""Planners, and the style of their lines."""


def main(
    results: Annotated[Path, typer.Option(help="The file of runs.")],
    models: Annotated[str, typer.Option(help="Which.")] = ",".join(MODELS),
    agents: Annotated[str, typer.Option(help="Names, or YAML files.")] = "drl-pp,drl-pp-mended",
    seeds: Annotated[int, typer.Option(min=1, help="How many.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Training steps of a run.")] = 200,
    picture: Annotated[Path | None, typer.Option(help="The picture to write.")] = None,
    document: DocumentOption = None,
) -> None:
    """Let agents learn on several models with several seeds, and compare where they end."""
    console = build_console()
    results.parent.mkdir(parents=True, exist_ok=True)
    known = {(r.model, r.agent, r.seed, len(r.draws)): r for r in _read(results)}
    # Seed by seed, so that what there is when it is interrupted compares all.
    names = list(product(range(seeds), models.split(","), agents.split(",")))
    runs = []
    for seed, model, agent in track(names, "learning", transient=True, console=console):
        found = known.get((model, agent, seed, steps))
        if found is None:
            found = run(model, agent, seed, steps)
            append(results, found)
        runs.append(found)
    table = table_of(runs)
    console.print(terminal(table, f"{steps} training steps, {seeds} seeds", names=2))
    if picture is not None:
        save(draw(runs), picture)
        console.print(f"written to {picture}")
    if document is not None:
        write_between(document, BEGIN, END, markdown(table))


def _read(results: Path) -> list[Run]:
    return read_results_of("benchmarks.reward_curves", Run, results)


def table_of(runs: Sequence[Run]) -> DataFrame:
    """Return where the agents end on every model, the median over seeds and the extremes."""
    rows = []
    for model in dict.fromkeys(one.model for one in runs):
        planned = {name: _ms(planned_seconds(model, name)) for name in _COMPARED}
        of_model = [one for one in runs if one.model == model]
        for agent in dict.fromkeys(one.agent for one in of_model):
            found = [one for one in of_model if one.agent == agent]
            rows.append(
                {
                    "model": MODELS[model].title,
                    "agent": agent,
                    "best found, ms": _spread(found, lambda one: one.best_seconds, _ms),
                    "policy ends at, ms": _spread(found, lambda one: one.last_seconds, _ms),
                    "invalid draws": _spread(found, _invalid_share, "{:.0%}".format),
                    "placements measured": _spread(
                        found, lambda one: float(one.distinct), "{:,.0f}".format
                    ),
                    **{f"{name}, ms": seconds for name, seconds in planned.items()},
                }
            )
    return DataFrame(rows)


def _spread(
    runs: Sequence[Run], value: Callable[[Run], float], text: Callable[[float], str]
) -> str:
    found = [value(one) for one in runs]
    return f"{text(float(np.median(found)))} ({text(min(found))}–{text(max(found))})"


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.4g}"


def _invalid_share(one: Run) -> float:
    return sum(one.invalid) / sum(one.draws)


def draw(runs: Sequence[Run]) -> Figure:
    """Draw the rewards of each model: the median over seeds, and all seeds as a band."""
    models = list(dict.fromkeys(one.model for one in runs))
    figure = Figure(figsize=(4 * len(models), 3.6), layout="constrained")
    panels = figure.subplots(1, len(models), squeeze=False)[0]
    for axes, model in zip(panels, models, strict=True):
        of_model = [one for one in runs if one.model == model]
        for agent in dict.fromkeys(one.agent for one in of_model):
            rewards = np.array(
                [one.mean_rewards for one in of_model if one.agent == agent], dtype=float
            )
            steps = np.arange(1, rewards.shape[1] + 1)
            (line,) = axes.plot(steps, np.nanmedian(rewards, axis=0), linewidth=1.2, label=agent)
            low, high = np.nanmin(rewards, axis=0), np.nanmax(rewards, axis=0)
            axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        for name, style in _COMPARED.items():
            reward = -np.log(planned_seconds(model, name))
            axes.axhline(reward, color="grey", linewidth=1, linestyle=style, label=name)
        axes.set_title(MODELS[model].title, loc="left", fontsize=10)
        axes.set_xlabel("training step")
    panels[0].set_ylabel("mean reward −ln(seconds per minibatch)")
    panels[0].legend(fontsize=8)
    return figure
