"""PipeMare's figures of the quadratic model: 5, 6, 10 and 16, and its lemmas drawn.

Where a caption leaves a number open (the delays of 5a, the step size and sensitivities of 6a), it
is chosen here. Nothing global is touched: no pyplot, no current figure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from benchmarks.pipemare.delayed_regression import diabetes, final_losses, largest_curvature
from benchmarks.pipemare.quadratic_model import (
    Array,
    QuadraticModel,
    decay_from,
    invariant_decay,
    largest_stable_step,
    lemma_1_threshold,
    lemma_3_bound,
    printed_invariant_decay,
    spectral_radius,
    trajectory,
)

FIGURE_6 = QuadraticModel(forward_delay=10, backward_delay=6, discrepancy_sensitivity=5)
FIGURE_10 = QuadraticModel(forward_delay=40, backward_delay=10)
FIGURE_16 = QuadraticModel(
    forward_delay=10,
    backward_delay=1,
    recompute_delay=4,
    discrepancy_sensitivity=10,
    recompute_sensitivity=-5,
)
REGRESSION_DELAYS = (0, 1, 2, 4, 8, 16, 32, 64)
REGRESSION_STEPS = np.geomspace(1e-3, 1, 49)
_D = 0.1  # of T2, in the captions of figures 6 and 16
# Okabe and Ito's palette, which colour-blind readers can tell apart.
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")


def corrections(model: QuadraticModel) -> dict[str, QuadraticModel]:
    """Return a model without T2, and with its three readings; decays are those of appendix B.4."""
    delays = model.forward_delay, model.backward_delay
    printed = printed_invariant_decay(*delays)
    return {
        "no correction": model,
        "T2, polynomial of B.4": replace(model, decay=printed, delayed_velocity=True),
        "T2, rule of §3.2": replace(model, decay=printed),
        "T2, rule of §3.2, its own γ": replace(model, decay=invariant_decay(*delays)),
    }


def figure_6b_models() -> dict[str, QuadraticModel]:
    """Return the curves of figure 6(b), and T2 as its polynomial is printed in appendix B.4."""
    decay = decay_from(_D, FIGURE_6.forward_delay, FIGURE_6.backward_delay)
    return {
        "discrepancy, Δ = 5": FIGURE_6,
        "T2, D = 0.1, rule of §3.2": replace(FIGURE_6, decay=decay),
        "T2, D = 0.1, polynomial of B.4": replace(FIGURE_6, decay=decay, delayed_velocity=True),
        "no discrepancy": replace(FIGURE_6, discrepancy_sensitivity=0),
    }


def figure_16_models() -> dict[str, QuadraticModel]:
    """Return the curves of figure 16, and T2 as its polynomial is printed in appendix D.1."""
    decay = decay_from(_D, FIGURE_16.forward_delay, FIGURE_16.backward_delay)
    plain = replace(FIGURE_16, recompute_sensitivity=0)
    return {
        "discrepancy and recomputation": FIGURE_16,
        "discrepancy, no recomputation": plain,
        "T2, D = 0.1, rule of D.1": replace(FIGURE_16, decay=decay),
        "T2, D = 0.1, polynomial of D.1": replace(FIGURE_16, decay=decay, delayed_velocity=True),
        "no discrepancy": replace(plain, discrepancy_sensitivity=0),
    }


def figure_5a(generator: np.random.Generator) -> Figure:
    """Draw the model's loss with α = 0.2 for delays on both sides of the threshold (τ = 7 | 8)."""
    models = {f"τ = {delay}": QuadraticModel(delay) for delay in (0, 5, 7, 8, 10)}
    figure, axes = _figure("Figure 5(a): λ = 1, α = 0.2, noise N(0, 1), from w = 0")
    _draw_losses(axes, models, 0.2, generator.standard_normal(300))
    return figure


def regression_losses(generator: np.random.Generator) -> Array:
    """Return the loss of the linear regression after 20 000 updates, (delays, step sizes)."""
    features, targets = diabetes()
    return np.stack(
        [
            final_losses(features, targets, delay, REGRESSION_STEPS, 20_000, 64, generator)
            for delay in REGRESSION_DELAYS
        ]
    )


def figure_5b(losses: Array) -> Figure:
    """Draw a map of losses, (delays, step sizes), and Lemma 1 for the largest curvature."""
    rows = np.arange(len(REGRESSION_DELAYS))
    curvature = largest_curvature(diabetes()[0])
    bound = [lemma_1_threshold(curvature, delay) for delay in REGRESSION_DELAYS]
    figure, axes = _figure("Figure 5(b)'s question on scikit-learn's diabetes data")
    axes.set_facecolor("#B22222")
    kept = np.ma.masked_where(diverged(losses), losses)
    figure.colorbar(
        axes.pcolormesh(REGRESSION_STEPS, rows, kept), label="loss (red: above that of w = 0)"
    )
    axes.plot(bound, rows, "k.-", label="Lemma 1 for the largest curvature")
    axes.set_yticks(rows, [str(delay) for delay in REGRESSION_DELAYS])
    axes.set(xscale="log", xlabel="step size α", ylabel="delay τ")
    axes.legend(loc="lower left")
    return figure


def diverged(losses: Array) -> NDArray[np.bool_]:
    """Return which losses are above that of w = 0, half the targets' variance of 1."""
    return losses > 0.5


def figure_6(generator: np.random.Generator) -> Figure:
    """Draw how discrepancy makes the model diverge (a, α = 0.06) and T2 makes it stable (b)."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    models = {f"Δ = {d}": replace(FIGURE_6, discrepancy_sensitivity=d) for d in (0, 1, 3, 5)}
    _draw_losses(left, models, 0.06, generator.standard_normal(300))
    left.set_title("Figure 6(a): τ_fwd = 10, τ_bkwd = 6, α = 0.06", loc="left", fontsize=11)
    _draw_radii(right, figure_6b_models(), np.linspace(0, 0.2, 201))
    right.set_title("Figure 6(b): Δ = 5", loc="left", fontsize=11)
    return figure


def figure_10() -> Figure:
    """Draw the largest stable step for Δ from −100 to 100, without T2 and with its 3 readings."""
    sensitivities = np.arange(-100.0, 101.0)
    labels = tuple(corrections(FIGURE_10))
    steps = [
        [
            largest_stable_step(model)
            for model in corrections(
                replace(FIGURE_10, discrepancy_sensitivity=float(delta))
            ).values()
        ]
        for delta in sensitivities
    ]
    figure, axes = _figure("Figure 10: τ_fwd = 40, τ_bkwd = 10, λ = 1")
    _draw_curves(axes, sensitivities, np.transpose(steps), labels)
    axes.set(yscale="log", xlabel="discrepancy sensitivity Δ", ylabel="largest stable α")
    return figure


def figure_16() -> Figure:
    """Draw the largest eigenvalue with recomputation, without T2 and with it."""
    figure, axes = _figure("Figure 16: Δ = 10, Φ = −5, τ_fwd = 10, τ_bkwd = 1, τ_recomp = 4")
    _draw_radii(axes, figure_16_models(), np.linspace(0, 0.08, 161))
    return figure


def figure_lemmas() -> Figure:
    """Draw the largest stable steps with and without momentum, and lemmas 1 and 3."""
    delays = range(41)
    figure, axes = _figure("Lemmas 1 and 3: λ = 1")
    axes.plot(delays, [lemma_1_threshold(1, t) for t in delays], "k-", label="Lemma 1, exact")
    axes.plot(delays, [lemma_3_bound(1, t) for t in delays], "k--", label="Lemma 3, bound")
    for momentum, colour in zip((0, 0.5, 0.9, 0.99), _COLOURS, strict=False):
        steps = [largest_stable_step(QuadraticModel(t, momentum=momentum)) for t in delays]
        axes.plot(delays, steps, ".", color=colour, label=f"numerical, β = {momentum}")
    axes.set(yscale="log", xlabel="delay τ", ylabel="largest stable α")
    axes.legend()
    return figure


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    return figure, axes


def _draw_losses(
    axes: Axes, models: Mapping[str, QuadraticModel], step_size: float, noise: Array
) -> None:
    losses = [
        model.curvature / 2 * np.array(list(trajectory(model, step_size, noise))) ** 2
        for model in models.values()
    ]
    _draw_curves(axes, np.arange(1.0, len(noise) + 1), np.array(losses), tuple(models))
    # Below lies the noise of a weight that happens to cross its optimum.
    axes.set(yscale="log", ylim=(1e-3, 1e5), xlabel="iteration", ylabel="loss λw²/2")


def _draw_radii(axes: Axes, models: Mapping[str, QuadraticModel], step_sizes: Array) -> None:
    radii = [[spectral_radius(model, a) for a in step_sizes] for model in models.values()]
    axes.axhline(1, color="grey", linewidth=0.8)
    _draw_curves(axes, step_sizes, np.array(radii), tuple(models))
    axes.set(xlabel="step size α", ylabel="largest eigenvalue's magnitude")


def _draw_curves(axes: Axes, x: Array, rows: Array, labels: Sequence[str]) -> None:
    for row, label, colour in zip(rows, labels, _COLOURS, strict=False):
        axes.plot(x, row, label=label, color=colour, linewidth=1.3)
    axes.legend(fontsize=8)
