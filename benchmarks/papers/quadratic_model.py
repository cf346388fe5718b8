"""PipeMare's quadratic model: delayed gradient descent on f(w) = λw²/2, a linear recurrence.

The gradient sample of microbatch t reads up to three versions of the weight (pipemare §3.1, §3.2,
appendix D.1), of which the last two may be corrected (T2) by the velocity δ:

    g_t = (λ+Δ)·w_{t−τ_fwd} − (Δ−Φ)·u_bkwd − Φ·u_recomp − η_t
    u_x = w_{t−τ_x} − (τ_fwd−τ_x)·δ_t                       without T2: w_{t−τ_x}
    w_{t+1} = w_t + β(w_t − w_{t−1}) − α·g_t
    δ_{t+1} = γδ_t + (1−γ)(w_{t+1} − w_t)

The step size α is stable as long as every eigenvalue of the companion matrix, that is every root
of its characteristic polynomial p(ω) = A(ω) + α·B(ω), lies inside the unit circle.

**Which velocity?** Section 3.2 subtracts δ_t, today's velocity, from a weight that is τ_bkwd steps
old. The characteristic polynomials printed in appendices B.4 and D.1 have the factor
ω^{τ_fwd−τ_bkwd} in the velocity's term; the rule of section 3.2 gives ω^{τ_fwd} there. The printed
ones are those of the rule with δ_{t−τ_bkwd}, the velocity at the time of the weight that it
corrects. Both are models here (``delayed_velocity``); for τ_bkwd = 0, which is PipeMare's own
pipeline (Table 1), they are one.

Polynomials are arrays of coefficients, highest power first, as for :func:`numpy.polyval`. Delays
count updates; α, λ, Δ, Φ, β and γ are pure numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from drlpp.errors import InvalidInput

Array = NDArray[np.float64]

# Points on the upper half of the unit circle. The functions whose zeros they bracket are
# trigonometric polynomials of twice the state's size, so about a hundred times fewer would do.
_HALF_CIRCLE = 8192
_BISECTIONS = 44  # from a bracket of π/8192 to the resolution of floating point


@dataclass(frozen=True, slots=True)
class Reading:
    """A version of the weight in the gradient: coefficient·(w_{t−delay} − lead·δ)."""

    coefficient: float
    delay: int
    lead: int


@dataclass(frozen=True, slots=True)
class QuadraticModel:
    """Curvature, delays and sensitivities of one quadratic model; everything but the step size.

    Args:
        forward_delay: τ_fwd ≥ 0.
        backward_delay: τ_bkwd ≤ τ_fwd, which matters if Δ ≠ Φ.
        recompute_delay: τ_recomp ≤ τ_fwd, which matters if Φ ≠ 0.
        curvature: λ > 0.
        discrepancy_sensitivity: Δ.
        recompute_sensitivity: Φ.
        momentum: β in [0, 1).
        decay: γ in [0, 1) of the discrepancy correction T2, or None for none.
        delayed_velocity: correct w_{t−τ} by δ_{t−τ} instead of δ_t (see the module).

    Raises:
        InvalidInput: if a number is out of its range.
    """

    forward_delay: int
    backward_delay: int = 0
    recompute_delay: int = 0
    curvature: float = 1.0
    discrepancy_sensitivity: float = 0.0
    recompute_sensitivity: float = 0.0
    momentum: float = 0.0
    decay: float | None = None
    delayed_velocity: bool = False

    def __post_init__(self) -> None:
        for delay in (self.backward_delay, self.recompute_delay):
            if not 0 <= delay <= self.forward_delay:
                raise InvalidInput(f"a delay of {delay}: expected 0 to {self.forward_delay}")
        if not self.curvature > 0:
            raise InvalidInput(f"a curvature of {self.curvature}: expected a positive number")
        # At 1, the model has a root on the unit circle, or outside, for every step size.
        for factor in (self.momentum, self.decay or 0.0):
            if not 0 <= factor < 1:
                raise InvalidInput(f"momentum or decay of {factor}: expected 0 ≤ x < 1")

    @property
    def readings(self) -> tuple[Reading, ...]:
        """What the gradient is made of, without readings of weight zero."""
        delta, phi = self.discrepancy_sensitivity, self.recompute_sensitivity
        terms = (
            (self.curvature + delta, self.forward_delay),
            (phi - delta, self.backward_delay),
            (-phi, self.recompute_delay),
        )
        return tuple(
            Reading(factor, delay, 0 if self.decay is None else self.forward_delay - delay)
            for factor, delay in terms
            if factor
        )

    @property
    def weight_versions(self) -> int:
        """Rows w_t, w_{t−1}, … of the state."""
        return max(self.forward_delay, 1 if self.momentum else 0) + 1

    def velocity_delay(self, reading: Reading) -> int:
        """Return how old the velocity is that corrects a reading."""
        return reading.delay if self.delayed_velocity else 0


def decay_from(d: float, forward_delay: int, backward_delay: int) -> float:
    """Return the decay γ = D^{1/(τ_fwd−τ_bkwd)} for the hyperparameter D (pipemare §3.2, T2)."""
    return d ** (1 / (forward_delay - backward_delay))


def printed_invariant_decay(forward_delay: int, backward_delay: int) -> float:
    """Return the decay at which p''(1) is independent of Δ (equation 14), p as in appendix B.4."""
    return 1 - 2 / (forward_delay - backward_delay + 1)


def characteristic_polynomial(model: QuadraticModel) -> tuple[Array, Array]:
    """Return A and B of the characteristic polynomial p = A + αB.

    From w_t = ω^t, for which the velocity is δ_t = (1−γ)(ω−1)/(ω−γ)·ω^t. Without discrepancy this
    is equation 3, with momentum 13, with ``delayed_velocity`` the ones of B.4 and D.1. The
    companion matrix of a model with old velocities has further eigenvalues, all zero.

    Returns:
        Two arrays of the same length.
    """
    newest = model.weight_versions  # the power of w_{t+1}
    kept = np.zeros(newest + 1)
    kept[:2] = 1, -1 - model.momentum
    if model.momentum:
        kept[2] = model.momentum
    gradient = np.zeros(newest + 1)
    correction = np.zeros(newest + 1)
    for reading in model.readings:
        gradient[1 + reading.delay] += reading.coefficient
        correction[1 + model.velocity_delay(reading)] += reading.coefficient * reading.lead
    if model.decay is None:
        return kept, gradient
    lag = np.array([1, -model.decay])
    velocity = (1 - model.decay) * np.array([1.0, -1.0])
    return np.convolve(lag, kept), np.convolve(lag, gradient) - np.convolve(velocity, correction)


def largest_stable_step(model: QuadraticModel) -> float:
    """Return the smallest α > 0 with a root of p on the unit circle: all smaller are stable.

    Larger ones need not all be unstable, as stability need not be monotone in α. For small α > 0
    all roots are inside: those of A but one are, and ω = 1 moves inwards as α grows, since λ > 0.
    So the first crossing bounds the stable range. On the circle, p(ω) = 0 says that
    α = −A(ω)/B(ω), which is a step size only where it is real: where Im(A·B̄) = 0, whose sign
    changes are bracketed on a grid of angles and bisected; and at ω = −1, where it always is.
    """
    fixed, scaled = characteristic_polynomial(model)
    # The transform evaluates on the lower half of the circle, the conjugates of the upper half.
    on_circle = np.fft.rfft([fixed[::-1], scaled[::-1]], 2 * _HALF_CIRCLE).conj()
    imaginary = (on_circle[0] * on_circle[1].conj()).imag
    # Neither end: at ω = 1 is the root of α = 0, and ω = −1 is dealt with below.
    inner = np.arange(1, _HALF_CIRCLE - 1)
    brackets = inner[imaginary[inner] * imaginary[inner + 1] <= 0]
    low, high = brackets * np.pi / _HALF_CIRCLE, (brackets + 1) * np.pi / _HALF_CIRCLE
    sign = np.sign(imaginary[brackets])

    powers = np.arange(len(fixed))[::-1]
    both = np.stack([fixed, scaled], axis=1)

    def product(angle: Array) -> NDArray[np.complex128]:
        values = np.exp(1j * np.outer(angle, powers)) @ both
        return values[:, 0] * values[:, 1].conj()

    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        same = np.sign(product(middle).imag) == sign
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    roots = np.exp(1j * np.append((low + high) / 2, np.pi))
    with np.errstate(divide="ignore"):
        steps = -(np.polyval(fixed, roots) / np.polyval(scaled, roots)).real
    return float(steps[steps > 0].min())


def lemma_1_threshold(curvature: float, delay: int) -> float:
    """Return the step size that is unstable without discrepancy: 2/λ·sin(π/(4τ+2))."""
    return 2 / curvature * math.sin(math.pi / (4 * delay + 2))


def lemma_2_bound(model: QuadraticModel) -> float:
    """Return a bound of the largest stable step with Δ > 0 (discrepancy), no momentum, no T2."""
    discrepancy = model.forward_delay - model.backward_delay
    return min(
        2 / (model.discrepancy_sensitivity * discrepancy),
        lemma_1_threshold(model.curvature, model.forward_delay),
    )


def lemma_3_bound(curvature: float, delay: int) -> float:
    """Return a bound of the largest stable step with any momentum: 4/λ·sin(π/(4τ+2))."""
    return 2 * lemma_1_threshold(curvature, delay)
