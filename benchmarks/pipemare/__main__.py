"""Does PipeMare's analysis hold? Its lemmas and figures of the quadratic model, recomputed.

    python -m benchmarks.pipemare --out runs/pipemare

Writes figures 5, 6, 10 and 16 of the paper as pictures, and prints the largest stable step sizes
next to lemmas 1 to 3 and the claims of appendix B.4. About a minute on one core;
``docs/pipemare.md`` has the answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.table import Table

from benchmarks.pipemare.delayed_regression import diabetes, largest_curvature
from benchmarks.pipemare.figures import (
    FIGURE_6,
    REGRESSION_DELAYS,
    REGRESSION_STEPS,
    corrections,
    diverged,
    figure_5a,
    figure_5b,
    figure_6,
    figure_6b_models,
    figure_10,
    figure_16,
    figure_16_models,
    figure_lemmas,
    regression_losses,
)
from benchmarks.pipemare.quadratic_model import (
    Array,
    QuadraticModel,
    largest_stable_step,
    lemma_1_threshold,
    lemma_2_bound,
    lemma_3_bound,
)
from drlpp.cli.command_line import build_console, run_program

_LONGEST_DELAY = 40  # "the entire range of delays present in our experiments" (appendix B.4)
_MOMENTA = (0.5, 0.9, 0.99)
_SENSITIVITIES = (0.1, 1.0, 10.0, 100.0, -0.1, -1.0, -10.0, -100.0)

app = typer.Typer(pretty_exceptions_enable=False, add_completion=False)


@app.command()
def main(
    out: Annotated[
        Path, typer.Option(file_okay=False, help="Folder of the pictures; made if need be.")
    ],
    seed: Annotated[int, typer.Option(help="Of the noise.")] = 0,
) -> None:
    """Recompute PipeMare's lemmas and figures of the quadratic model."""
    console = build_console()
    out.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(seed)
    losses = regression_losses(generator)
    pictures = {
        "figure-5a": figure_5a(generator),
        "figure-5b": figure_5b(losses),
        "figure-6": figure_6(generator),
        "figure-10": figure_10(),
        "figure-16": figure_16(),
        "lemmas": figure_lemmas(),
    }
    for name, figure in pictures.items():
        figure.savefig(out / f"pipemare-{name}.png", dpi=90)

    console.print(lemma_table())
    console.print(discrepancy_table())
    console.print(named_table("Figure 6(b)", figure_6b_models()))
    console.print(named_table("Figure 16", figure_16_models()))
    console.print(regression_table(losses))
    with console.status("the claims of appendix B.4, for all pairs of delays"):
        claims = claims_table()
    console.print(claims)
    console.print(f"pictures: {out}")


def lemma_table() -> Table:
    """Compare the largest stable step sizes with the formulas of lemmas 1 and 3 (λ = 1)."""
    table = _table("Lemmas 1 and 3", "τ", "Lemma 1", "numerical", "relative difference")
    table.add_column("Lemma 3")
    for momentum in _MOMENTA:
        table.add_column(f"β = {momentum}")
    for delay in (0, 1, 2, 5, 10, 20, _LONGEST_DELAY):
        lemma, step = lemma_1_threshold(1, delay), largest_stable_step(QuadraticModel(delay))
        with_momentum = [
            largest_stable_step(QuadraticModel(delay, momentum=momentum)) for momentum in _MOMENTA
        ]
        table.add_row(
            str(delay),
            *(f"{value:.6f}" for value in (lemma, step)),
            f"{abs(step / lemma - 1):.0e}",
            *(f"{value:.5f}" for value in (lemma_3_bound(1, delay), *with_momentum)),
        )
    return table


def discrepancy_table() -> Table:
    """Compare the largest stable step sizes with lemma 2's bound, for the delays of figure 6."""
    table = _table("Lemma 2: τ_fwd = 10, τ_bkwd = 6", "Δ", "bound", "numerical", "ratio")
    for delta in (0.1, 1.0, 5.0, 20.0, 100.0):
        model = QuadraticModel(
            FIGURE_6.forward_delay, FIGURE_6.backward_delay, discrepancy_sensitivity=delta
        )
        bound, step = lemma_2_bound(model), largest_stable_step(model)
        table.add_row(f"{delta:g}", f"{bound:.5f}", f"{step:.5f}", f"{step / bound:.2f}")
    return table


def named_table(title: str, models: dict[str, QuadraticModel]) -> Table:
    """Compare the largest stable step size of every curve of a figure."""
    table = _table(title, "model", "largest stable α")
    for name, model in models.items():
        table.add_row(name, f"{largest_stable_step(model):.4f}")
    return table


def regression_table(losses: Array) -> Table:
    """Compare figure 5(b)'s last step size of the grid that converged with Lemma 1's.

    Args:
        losses: (delays, step sizes) of the figure.
    """
    curvature = largest_curvature(diabetes()[0])
    table = _table(
        f"Figure 5(b), diabetes, largest curvature {curvature:.2f}", "τ", "Lemma 1", "converged"
    )
    last_converged = REGRESSION_STEPS[diverged(losses).argmax(axis=1) - 1]
    for delay, step in zip(REGRESSION_DELAYS, last_converged, strict=True):
        table.add_row(str(delay), f"{lemma_1_threshold(curvature, delay):.4f}", f"{step:.4f}")
    return table


def claims_table() -> Table:
    """Count the pairs of delays for which T2 allows a larger step size (appendix B.4).

    All 820 pairs 0 ≤ τ_bkwd < τ_fwd ≤ 40; the ratio next to the count is the smallest found.
    """
    none, *names = corrections(FIGURE_6)
    table = _table("Pairs of delays, of 820, in which T2 widens the stable range", "Δ", *names)
    for delta in _SENSITIVITIES:
        wider: Counter[str] = Counter()
        smallest = dict.fromkeys(names, float("inf"))
        for model in _all_delays(delta):
            steps = {name: largest_stable_step(m) for name, m in corrections(model).items()}
            for name in names:
                ratio = steps[name] / steps[none]
                wider[name] += ratio > 1
                smallest[name] = min(smallest[name], ratio)
        table.add_row(f"{delta:g}", *(f"{wider[n]} (≥ {smallest[n]:.2f}×)" for n in names))
    return table


def _all_delays(delta: float) -> Iterable[QuadraticModel]:
    for forward in range(1, _LONGEST_DELAY + 1):
        for backward in range(forward):
            yield QuadraticModel(forward, backward, discrepancy_sensitivity=delta)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    return table


if __name__ == "__main__":
    run_program(app, "benchmarks.pipemare")
