"""Does PipeMare's analysis hold? Its lemmas and figures of the quadratic model, recomputed.

Where a caption leaves a number open (the delays of 5a), it is chosen here. Figure 5(b)'s question
is asked of scikit-learn's diabetes data instead of cpusmall.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from pandas import DataFrame

from benchmarks.papers.quadratic_model import (
    Array,
    QuadraticModel,
    decay_from,
    largest_stable_step,
    lemma_1_threshold,
    lemma_2_bound,
    lemma_3_bound,
    printed_invariant_decay,
)
from benchmarks.study import Row, Study
from drlpp.io.documents import Record

FIGURE_6 = QuadraticModel(forward_delay=10, backward_delay=6, discrepancy_sensitivity=5)
FIGURE_16 = QuadraticModel(
    forward_delay=10,
    backward_delay=1,
    recompute_delay=4,
    discrepancy_sensitivity=10,
    recompute_sensitivity=-5,
)
_D = 0.1
"""Of T2, in the captions of figures 6 and 16."""
_LONGEST_DELAY = 40
""""The entire range of delays present in our experiments" (appendix B.4)."""
_MOMENTA = (0.5, 0.9, 0.99)
_REGRESSION_STEPS = np.geomspace(1e-3, 1, 49)


class Case(Record):
    """A table, and the longest delay or the updates that it goes to."""

    table: str
    size: int


class Calculated(Row):
    """The lines of a table."""

    case: Case
    lines: tuple[dict[str, str], ...]


class PipeMareTheory(Study[Case, Calculated]):
    """Lemmas 1 to 3, figures 5(b), 6 and 16, and the claims of appendix B.4."""

    name = "pipemare-theory"
    question = "Does PipeMare's analysis of delayed weights hold?"
    row = Calculated

    def cases(self, seeds: int | None, *, short: bool) -> list[Case]:
        """Return a case for each table."""
        sizes = {"Lemmas 1 and 3": 40, "Lemma 2": 0, "Figure 6(b)": 0, "Figure 16": 0}
        if not short:
            sizes |= {"Figure 5(b)": 20_000, "Appendix B.4": _LONGEST_DELAY}
        return [Case(table=table, size=size) for table, size in sizes.items()]

    def run(self, case: Case) -> Calculated:
        """Calculate a table."""
        tables: dict[str, Callable[[], list[dict[str, str]]]] = {
            "Lemmas 1 and 3": lambda: _lemmas(case.size),
            "Lemma 2": _lemma_2,
            "Figure 6(b)": lambda: _steps(figure_6_models()),
            "Figure 16": lambda: _steps(figure_16_models()),
            "Figure 5(b)": lambda: _regression(case.size),
            "Appendix B.4": lambda: _claims(case.size),
        }
        return Calculated(case=case, lines=tuple(tables[case.table]()))

    def table(self, rows: Sequence[Calculated]) -> Mapping[str, DataFrame]:
        """Return the tables; λ is 1 where nothing else is said."""
        return {row.case.table: DataFrame(row.lines) for row in rows}


def corrections(model: QuadraticModel) -> dict[str, QuadraticModel]:
    """Return a model without T2, and with its two readings; the decay is that of equation 14."""
    decay = printed_invariant_decay(model.forward_delay, model.backward_delay)
    return {
        "no correction": model,
        "T2, polynomial of B.4": replace(model, decay=decay, delayed_velocity=True),
        "T2, rule of §3.2": replace(model, decay=decay),
    }


def figure_6_models() -> dict[str, QuadraticModel]:
    """Return the curves of figure 6(b), and T2 as its polynomial is printed in appendix B.4."""
    return {
        "discrepancy": FIGURE_6,
        **_with_d(FIGURE_6, "§3.2", "B.4"),
        "no discrepancy": replace(FIGURE_6, discrepancy_sensitivity=0),
    }


def figure_16_models() -> dict[str, QuadraticModel]:
    """Return the curves of figure 16, and T2 as its polynomial is printed in appendix D.1."""
    plain = replace(FIGURE_16, recompute_sensitivity=0)
    return {
        "discrepancy and recomputation": FIGURE_16,
        "discrepancy, no recomputation": plain,
        **_with_d(FIGURE_16, "D.1", "D.1"),
        "no discrepancy": replace(plain, discrepancy_sensitivity=0),
    }


def _with_d(model: QuadraticModel, rule: str, polynomial: str) -> dict[str, QuadraticModel]:
    decay = decay_from(_D, model.forward_delay, model.backward_delay)
    printed = replace(model, decay=decay, delayed_velocity=True)
    return {
        f"T2, D = 0.1, rule of {rule}": replace(model, decay=decay),
        f"T2, D = 0.1, polynomial of {polynomial}": printed,
    }


def _steps(models: Mapping[str, QuadraticModel]) -> list[dict[str, str]]:
    return [
        {"model": name, "largest stable α": f"{largest_stable_step(model):.4f}"}
        for name, model in models.items()
    ]


def _lemmas(longest: int) -> list[dict[str, str]]:
    """Compare the largest stable step sizes with the formulas of lemmas 1 and 3."""
    return [
        {
            "τ": str(delay),
            "Lemma 1": f"{lemma_1_threshold(1, delay):.6f}",
            "numerical": f"{largest_stable_step(QuadraticModel(delay)):.6f}",
            "Lemma 3": f"{lemma_3_bound(1, delay):.5f}",
            **{
                f"β = {beta}": f"{largest_stable_step(QuadraticModel(delay, momentum=beta)):.5f}"
                for beta in _MOMENTA
            },
        }
        for delay in (0, 1, 2, 5, 10, 20, 40)
        if delay <= longest
    ]


def _lemma_2() -> list[dict[str, str]]:
    """Compare them with lemma 2's bound, for the delays of figure 6."""
    models = [replace(FIGURE_6, discrepancy_sensitivity=d) for d in (0.1, 1.0, 5.0, 20.0, 100.0)]
    return [
        {
            "Δ": f"{model.discrepancy_sensitivity:g}",
            "bound": f"{lemma_2_bound(model):.5f}",
            "numerical": f"{largest_stable_step(model):.5f}",
        }
        for model in models
    ]


def _claims(longest: int) -> list[dict[str, str]]:
    """Count the pairs of delays for which T2 allows a larger step size (appendix B.4).

    All pairs 0 ≤ τ_bkwd < τ_fwd ≤ 40; in brackets is the smallest ratio of the step sizes.
    """
    lines = []
    for delta in (0.1, 1.0, 10.0, 100.0, -0.1, -1.0, -10.0, -100.0):
        ratios: dict[str, list[float]] = {}
        for forward in range(1, longest + 1):
            for backward in range(forward):
                model = QuadraticModel(forward, backward, discrepancy_sensitivity=delta)
                plain, *others = corrections(model).items()
                step = largest_stable_step(plain[1])
                for name, other in others:
                    ratios.setdefault(name, []).append(largest_stable_step(other) / step)
        lines.append(
            {
                "Δ": f"{delta:g}",
                **{
                    name: f"{sum(ratio > 1 for ratio in found)} of {len(found)} ({min(found):.2f})"
                    for name, found in ratios.items()
                },
            }
        )
    return lines


def _regression(updates: int) -> list[dict[str, str]]:
    """Compare the last step size that converges with Lemma 1 for the largest curvature.

    "Converged" is a loss below that of w = 0, half the targets' variance of 1; steps are 15% apart.
    """
    from sklearn.datasets import load_diabetes

    features, targets = load_diabetes(return_X_y=True)
    features, targets = features / features.std(axis=0), targets - targets.mean()
    targets /= targets.std()
    curvature = float(np.linalg.eigvalsh(features.T @ features / len(features))[-1])
    generator, lines = np.random.default_rng(0), []
    for delay in (0, 1, 2, 4, 8, 16, 32, 64):
        losses = final_losses(features, targets, delay, _REGRESSION_STEPS, updates, 64, generator)
        last = _REGRESSION_STEPS[(losses > 0.5).argmax() - 1]
        bound = lemma_1_threshold(curvature, delay)
        lines.append({"τ": str(delay), "Lemma 1": f"{bound:.4f}", "converged": f"{last:.4f}"})
    return lines


def final_losses(
    features: Array,
    targets: Array,
    delay: int,
    step_sizes: Array,
    iterations: int,
    batch_size: int,
    generator: np.random.Generator,
) -> Array:
    """Return half the mean squared error after SGD with gradients of weights ``delay`` updates old.

    Args:
        features: (n, d).
        targets: (n,).
        delay: τ.
        step_sizes: (k,), each of which is a run of its own, on the same minibatches.
        iterations: updates.
        batch_size: samples of a minibatch, drawn with replacement.
        generator: draws them.

    Returns:
        (k,), infinite where the weights left the range of floating point.
    """
    versions = np.zeros((delay + 1, len(step_sizes), features.shape[1]))
    with np.errstate(over="ignore", invalid="ignore"):
        for update in range(iterations):
            batch = generator.integers(len(targets), size=batch_size)
            newest, oldest = update % (delay + 1), (update + 1) % (delay + 1)
            residuals = versions[oldest] @ features[batch].T - targets[batch]
            gradients = residuals @ features[batch] / batch_size
            versions[oldest] = versions[newest] - step_sizes[:, None] * gradients
        weights = versions[iterations % (delay + 1)]
        losses = ((weights @ features.T - targets) ** 2).mean(axis=1) / 2
    return np.where(np.isfinite(losses), losses, np.inf)


STUDY = PipeMareTheory()
