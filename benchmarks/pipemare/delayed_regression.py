"""Stochastic gradient descent with delayed weights on a linear regression (pipemare, figure 5b).

The paper takes cpusmall, twelve features from LIBSVM; here it is the diabetes data, ten features,
which scikit-learn ships with, so that nothing is downloaded.
"""

from __future__ import annotations

import numpy as np

from benchmarks.pipemare.quadratic_model import Array
from drlpp.errors import InvalidInput


def diabetes() -> tuple[Array, Array]:
    """Return the diabetes data: features (442, 10), targets (442,), of mean 0 and deviation 1.

    Raises:
        InvalidInput: without scikit-learn.
    """
    try:
        from sklearn.datasets import load_diabetes
    except ImportError:
        raise InvalidInput(
            "the regression's data are scikit-learn's: pip install drlpp[data]"
        ) from None
    features, targets = load_diabetes(return_X_y=True)
    return features / features.std(axis=0), (targets - targets.mean()) / targets.std()


def largest_curvature(features: Array) -> float:
    """Return the largest eigenvalue of the squared error's Hessian XᵀX/n, for features (n, d)."""
    return float(np.linalg.eigvalsh(features.T @ features / len(features))[-1])


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
