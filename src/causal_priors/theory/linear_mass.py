"""Far mass of a linear log-prior, -slope * d (ALiBi), in closed form. Pure NumPy, float64."""

import numpy as np


def linear_far_mass(slope: float, n: int, window: int) -> float:
    """Mass on keys at distance >= window, averaged over the last `window` of the n queries of a window; slope > 0."""
    keys = np.arange(n - window + 1, n + 1, dtype=np.float64)
    beyond = np.exp(-slope * window) * np.expm1(-slope * (np.maximum(keys, window) - window))
    return float(np.mean(beyond / np.expm1(-slope * keys)))


def linear_far_mass_limit(slope: float, window: int) -> float:
    """Far mass as n goes to infinity."""
    return float(np.exp(-slope * window))
