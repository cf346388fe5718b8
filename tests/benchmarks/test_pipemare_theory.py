"""PipeMare's formulas against the update rule itself, as its companion matrix."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.papers.pipemare_theory import (
    FIGURE_6,
    FIGURE_16,
    final_losses,
)
from benchmarks.papers.quadratic_model import (
    QuadraticModel,
    characteristic_polynomial,
    largest_stable_step,
    lemma_1_threshold,
    lemma_2_bound,
    lemma_3_bound,
)

CURVATURES = st.floats(0.1, 10)
SENSITIVITIES = st.floats(-20, 20)
FACTORS = st.floats(0, 0.95)


@st.composite
def models(draw, momenta=FACTORS):
    forward = draw(st.integers(0, 8))
    return QuadraticModel(
        forward,
        draw(st.integers(0, forward)),
        draw(st.integers(0, forward)),
        draw(CURVATURES),
        draw(SENSITIVITIES),
        draw(SENSITIVITIES),
        draw(momenta),
        draw(st.none() | FACTORS),
        draw(st.booleans()),
    )


def spectral_radius(model, step_size):
    """The largest eigenvalue's magnitude of the matrix that makes an update; stable below 1."""
    return float(np.abs(np.linalg.eigvals(companion_matrix(model, step_size))).max())


def companion_matrix(model, step_size):
    """C of state_{t+1} = C·state_t (equation 2): an update of every unit vector, by §3.1 and §3.2.

    The state has rows w_t, w_{t−1}, …, then δ_t, δ_{t−1}, …
    """
    lags = [model.velocity_delay(reading) for reading in model.readings if reading.lead]
    velocity_versions = 0 if model.decay is None else 1 + max(lags, default=0)
    state = np.eye(model.weight_versions + velocity_versions)
    weights, velocities = np.split(state, [model.weight_versions])
    gradient = 0.0
    for reading in model.readings:
        value = weights[reading.delay]
        if reading.lead:
            value = value - reading.lead * velocities[model.velocity_delay(reading)]
        gradient = gradient + reading.coefficient * value
    weight = weights[0] - step_size * gradient
    if model.momentum:
        weight = weight + model.momentum * (weights[0] - weights[1])
    rows = [weight[None], weights[:-1]]
    if model.decay is not None:
        velocity = model.decay * velocities[0] + (1 - model.decay) * (weight - weights[0])
        rows += [velocity[None], velocities[:-1]]
    return np.concatenate(rows)


def polynomial(model, step_size):
    fixed, scaled = characteristic_polynomial(model)
    return fixed + step_size * scaled


def power(exponent):
    """ω^exponent."""
    return np.poly1d([1] + [0] * exponent)


def printed_polynomial(model, step_size):
    """p as printed in appendix D.1, which is that of appendix B.4 if Φ = 0."""
    forward, backward = model.forward_delay, model.backward_delay
    recompute, decay = model.recompute_delay, model.decay
    delta, phi = model.discrepancy_sensitivity, model.recompute_sensitivity
    one, gamma = np.poly1d([1, -1]), np.poly1d([1, -decay])  # ω − 1 and ω − γ
    p = one * gamma * power(forward)
    p += step_size * (model.curvature + delta) * gamma
    p -= step_size * (delta - phi) * power(forward - backward) * gamma
    p += (
        step_size
        * ((delta - phi) * (forward - backward) * (1 - decay))
        * (power(forward - backward) * one)
    )
    p -= step_size * phi * power(forward - recompute) * gamma
    p += (
        step_size * (phi * (forward - recompute) * (1 - decay)) * (power(forward - recompute) * one)
    )
    return p.coeffs


@given(st.integers(0, 40), CURVATURES, st.floats(0.01, 0.99))
def test_lemma_1_is_exact_and_lemma_3_a_bound(delay, curvature, momentum):
    model = QuadraticModel(delay, curvature=curvature)
    threshold = largest_stable_step(model)
    assert threshold == pytest.approx(lemma_1_threshold(curvature, delay), rel=1e-9)
    assert spectral_radius(model, 0.999 * threshold) < 1 < spectral_radius(model, 1.001 * threshold)
    step = largest_stable_step(replace(model, momentum=momentum))
    assert step <= lemma_3_bound(curvature, delay)


@given(st.integers(1, 40), st.data(), CURVATURES, st.floats(0.01, 100))
def test_lemma_2_bounds_the_stable_steps(forward, data, curvature, delta):
    backward = data.draw(st.integers(0, forward - 1))
    model = QuadraticModel(forward, backward, curvature=curvature, discrepancy_sensitivity=delta)
    assert largest_stable_step(model) <= lemma_2_bound(model)


@given(models(), st.floats(0.001, 2))
def test_polynomial_is_the_companion_matrix_s(model, step_size):
    matrix = companion_matrix(model, step_size)
    expected = np.poly(matrix)
    found = polynomial(model, step_size)
    # Old velocities are copies, with eigenvalue zero.
    found = np.pad(found, (0, len(expected) - len(found)))
    scale = max(1, np.abs(expected).max())
    assert found == pytest.approx(expected, abs=1e-6 * scale)


@given(models(st.just(0.0)), FACTORS, st.floats(0.001, 2))
def test_printed_polynomials_are_those_of_the_old_velocity(model, decay, step_size):
    model = replace(model, decay=decay, delayed_velocity=True)
    assert polynomial(model, step_size) == pytest.approx(printed_polynomial(model, step_size))


@pytest.mark.parametrize("model", [FIGURE_6, FIGURE_16])
def test_printed_polynomials_are_not_those_of_the_update_rule(model):
    model = replace(model, discrepancy_sensitivity=5.0, decay=0.6)
    assert polynomial(model, 0.1) != pytest.approx(printed_polynomial(model, 0.1))
    at_once = replace(model, backward_delay=0, recompute_sensitivity=0.0)
    assert polynomial(at_once, 0.1) == pytest.approx(printed_polynomial(at_once, 0.1))


@given(models())
def test_all_steps_below_the_largest_are_stable(model):
    threshold = largest_stable_step(model)
    assert spectral_radius(model, threshold) == pytest.approx(1, abs=1e-6)
    # Next to a step of zero, a root is as close to 1 as the eigenvalues are exact.
    for part in np.linspace(0.02, 0.98, 25):
        assert spectral_radius(model, part * threshold) < 1 + 1e-9


@pytest.mark.parametrize("delay", [0, 1, 3])
def test_delayed_regression_against_a_plain_loop(delay):
    generator = np.random.default_rng(1)
    features, targets = generator.standard_normal((30, 4)), generator.standard_normal(30)
    steps = np.array([0.01, 0.1])
    found = final_losses(features, targets, delay, steps, 50, 8, np.random.default_rng(2))
    for step, loss in zip(steps, found, strict=True):
        draws = np.random.default_rng(2)
        history = [np.zeros(4)] * (delay + 1)
        for _ in range(50):
            batch = draws.integers(30, size=8)
            old = history[-1 - delay]
            gradient = features[batch].T @ (features[batch] @ old - targets[batch]) / 8
            history.append(history[-1] - step * gradient)
        assert loss == pytest.approx(((features @ history[-1] - targets) ** 2).mean() / 2)
