"""Window mass of every prior that is a function of distance alone, for any length, head by head.

W(w; n) is the share of one query's weight that its w nearest of n visible keys hold, if content says nothing. Power
laws come from the theory's harmonic numbers; others are summed to a few thousand keys and integrated from there, which
is closed form for both families and errs by less than a figure shows.
"""

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from causal_priors.theory.window_mass import harmonic, power_integral, window_mass

Floats = NDArray[np.float64]
_DIRECT = 4096


def kerple_mass(power: float, rate: float, window: int, n: ArrayLike) -> Floats:
    """W of weights (1 + rate d)^-power."""
    head = np.cumsum((1 + rate * np.arange(_DIRECT)) ** -power)

    def total(keys: Floats) -> Floats:
        direct = head[np.clip(keys, 1, _DIRECT).astype(int) - 1]
        # Midpoint rule: the sum over d = a .. b - 1 is nearly the integral from a - 1/2 to b - 1/2.
        start, end = 1 + rate * (_DIRECT - 0.5), 1 + rate * (np.maximum(keys, _DIRECT) - 0.5)
        return np.asarray(direct + power_integral(start, end, power) / rate)

    keys = np.asarray(n, dtype=np.float64)
    return total(np.minimum(window, keys)) / total(keys)


def linear_mass(slope: float, window: int, n: ArrayLike) -> Floats:
    """W of weights exp(-slope d)."""
    keys = np.asarray(n, dtype=np.float64)
    return np.asarray(np.expm1(-slope * np.minimum(window, keys)) / np.expm1(-slope * keys))


def edited_mass(edit: str, exponent: float, length: int, window: int, n: ArrayLike) -> Floats:
    """W of a power law under `edit` beyond `length`: cap holds it there, repair subtracts (d - L) / L (A3)."""
    keys = np.asarray(n, dtype=np.float64)
    if edit == "cap":
        inside = harmonic(np.minimum(length, keys), exponent)
        total = inside + np.maximum(0, keys - length) * (1.0 + length) ** -exponent
    else:
        # Beyond 60 L the factor is below e^-59.
        lag = np.arange(60 * length)
        weight = (1.0 + lag) ** -exponent * np.exp(-np.maximum(0, lag - length) / length)
        total = np.cumsum(weight)[np.minimum(keys, len(lag)).astype(int) - 1]
    return np.asarray(harmonic(np.minimum(window, keys), exponent) / total)


def head_mass(parameters: Mapping[str, float], window: int, n: ArrayLike) -> Floats:
    """W of one head from what its prior reports: an exponent (and a rate, for KERPLE), or a slope."""
    if "rate" in parameters:
        return kerple_mass(parameters["exponent"], parameters["rate"], window, n)
    if "exponent" in parameters:
        return window_mass(window, n, parameters["exponent"])
    return linear_mass(parameters["slope"], window, n)
