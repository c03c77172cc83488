"""How much of a logarithmic prior's mass stays inside a window, for any length, without training.

The prior -alpha ln(1 + d) gives the key at lag d = i - j the weight (1 + d)^-alpha, so a query with n visible keys
keeps W(w; n) = H_w(alpha) / H_n(alpha) on its w nearest keys, H_n(alpha) = 1 + 2^-alpha + ... + n^-alpha. Far mass is
1 - W as training measures it: averaged over the last w queries of a window. Close to alpha = 1 a summable prior looks
diluting over any length anyone trains at; these functions cost the same at n = 10^9 as at n = 100. Pure NumPy and
SciPy, float64.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bernoulli, exprel, zeta

from causal_priors.errors import refuse

Floats = NDArray[np.float64]

# Terms up to here are added one by one; the rest comes from the Euler-Maclaurin formula, whose error from this start is
# below 1e-20 of that rest for exponents up to 20.
_DIRECT = 64
_CORRECTIONS = 8


def power_integral(a: ArrayLike, b: ArrayLike, exponent: float) -> Floats:
    """Integral of x^-exponent from a to b (0 < a), exact through exponent = 1 (there: ln(b / a))."""
    start = np.asarray(a, dtype=np.float64)
    log_ratio = np.log1p((np.asarray(b, dtype=np.float64) - start) / start)
    return np.asarray(start ** (1 - exponent) * log_ratio * exprel((1 - exponent) * log_ratio))


def power_sum(first: ArrayLike, last: ArrayLike, exponent: float) -> Floats:
    """Sum of m^-exponent over m = first + 1 .. last (0 <= first <= last); arrays broadcast. Does not cancel."""
    low, high = np.broadcast_arrays(np.asarray(first, dtype=np.float64), np.asarray(last, dtype=np.float64))
    m = np.arange(1, _DIRECT + 1, dtype=np.float64)
    # Masked, since a difference of two partial sums would cancel where the exponent is large.
    inside = (m > low[..., None]) & (m <= high[..., None])
    head = (inside * m**-exponent).sum(axis=-1)
    return np.asarray(head + _tail(np.maximum(low, _DIRECT), np.maximum(high, _DIRECT), exponent))


def _tail(a: Floats, b: Floats, exponent: float) -> Floats:
    """Euler-Maclaurin for the sum over m = a + 1 .. b, a >= _DIRECT."""
    total = power_integral(a, b, exponent) + (b**-exponent - a**-exponent) / 2
    # The (2k-1)-th derivative of x^-alpha is minus `rising` = alpha (alpha+1) ... (alpha+2k-2) times x^-(alpha+2k-1).
    rising, factorial = exponent, 2.0
    for k, number in enumerate(bernoulli(2 * _CORRECTIONS)[2::2], start=1):
        order = 2 * k - 1
        total = total + number / factorial * rising * (a ** -(exponent + order) - b ** -(exponent + order))
        rising *= (exponent + order) * (exponent + order + 1)
        factorial *= (2 * k + 1) * (2 * k + 2)
    return total


def harmonic(n: ArrayLike, exponent: float) -> Floats:
    """Generalised harmonic number H_n(exponent), for one n or an array of them."""
    return power_sum(0, n, exponent)


def window_mass(window: int, n: ArrayLike, exponent: float) -> Floats:
    """W(w; n): weight of one query's `window` nearest keys among n visible ones (1 where n <= window)."""
    keys = np.asarray(n, dtype=np.float64)
    return np.asarray(harmonic(np.minimum(window, keys), exponent) / harmonic(keys, exponent))


def window_mass_bounds(window: int, n: ArrayLike, exponent: float) -> tuple[Floats, Floats]:
    """Lower and upper bound on W(w; n) from integrals alone: I(w+1)/(1+I(n)) and min(1, (1+I(w))/I(n+1))."""
    keys = np.asarray(n, dtype=np.float64)
    lower = power_integral(1, window + 1, exponent) / (1 + power_integral(1, keys, exponent))
    upper = (1 + power_integral(1, window, exponent)) / power_integral(1, keys + 1, exponent)
    return lower, np.minimum(1.0, upper)


def far_mass(exponent: float, n: int, window: int) -> float:
    """F(alpha; n, w): mass on keys at distance >= w, averaged over the last w of the n queries of a window.

    Raises `UserError` unless 1 <= window <= n.
    """
    if not 1 <= window <= n:
        raise refuse(f"is no window inside n = {n} keys", key="window", value=window, remedy="choose 1 <= window <= n")
    keys = np.arange(n - window + 1, n + 1, dtype=np.float64)
    far = power_sum(np.minimum(window, keys), keys, exponent)
    return float(np.mean(far / harmonic(keys, exponent)))


def mean_far_mass(exponents: Sequence[float], n: int, window: int) -> float:
    """Far mass averaged over heads with these exponents."""
    return float(np.mean([far_mass(exponent, n, window) for exponent in exponents]))


def far_mass_limit(exponent: float, window: int) -> float:
    """Far mass as n goes to infinity: 1 for exponent <= 1, 1 - H_w / zeta above."""
    if exponent <= 1:
        return 1.0
    return float(zeta(exponent, window + 1) / zeta(exponent, 1))
