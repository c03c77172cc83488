"""Causal optimal transport without training: what the operator does to constant and to bounded scores.

Shape legend: a row is a query; row i (counted from 1, as in t = j / i) sees the keys j = 1 .. i.

The operator is P[i, j] = exp(S[i, j] + a[i]) * C[j](i)^-strength with rows that sum to one, where C[j](i) is the mass
that key j has received from rows j .. i (assumption A1). Given the carry of the rows above, each row is one scalar
equation for its potential a[i], whose logarithm has a slope between 1 - strength and 1; Newton solves it inside the
bracket that this slope gives, in the log domain. Rows come one after the other and are never kept, so n = 4096 takes a
second. For constant scores i * P[i, j] tends to f(t) = (ln 1/t)^-strength / Gamma(1 - strength): a prior of the same
shape at every length, under which every fixed window is diluted. Pure NumPy and SciPy, float64.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import gamma, gammainc

from causal_priors.errors import refuse
from causal_priors.theory.window_mass import harmonic

Floats = NDArray[np.float64]
Scores = Callable[[int], Floats]

_ITERATIONS = 100
# Of a row sum, relative: some roundings of the potential and of a sum over thousands of keys.
_TOLERANCE = 1e-13


def constant_scores(i: int) -> Floats:
    """Row i of scores that are all zero."""
    return np.zeros(i)


def bounded_scores(bound: float, seed: int) -> Scores:
    """Return rows of independent scores, uniform on [-bound, bound]. To be asked for in order, once."""
    generator = np.random.default_rng(seed)
    return lambda i: generator.uniform(-bound, bound, size=i)


def transport_rows(n: int, strength: float, scores: Scores = constant_scores) -> Iterator[tuple[float, Floats]]:
    """Yield (a[i], P[i, 1..i]) for the rows i = 1 .. n.

    scores: returns row i's scores [i], asked for in order. Raises `UserError` unless 0 <= strength < 1.
    """
    if not 0 <= strength < 1:
        raise refuse("is not in [0, 1)", key="strength", value=strength, remedy="0 is softmax; 1 has no solution")
    log_carry = np.empty(n)
    latest, step = 0.0, 0.0
    for i in range(1, n + 1):
        scores_i = scores(i)
        # The row's own key has received nothing yet.
        log_carry[i - 1] = -np.inf
        # Potentials fall like -ln i, so their steps shrink like 1 / i.
        potential, plan = _solve(scores_i, log_carry[:i], strength, latest + step * (i - 1.5) / (i - 0.5))
        np.logaddexp(log_carry[:i], scores_i + potential, out=log_carry[:i])
        latest, step = potential, potential - latest if i > 1 else 0.0
        yield potential, plan


def _solve(scores: Floats, log_carry: Floats, strength: float, start: float) -> tuple[float, Floats]:
    """Return the potential of one row and its P, from a guess of the potential."""
    low, high, potential = -np.inf, np.inf, start
    for _ in range(_ITERATIONS):
        log_mass = scores + potential
        log_total = np.logaddexp(log_carry, log_mass)
        log_plan = log_mass - strength * log_total
        largest = log_plan.max()
        plan = np.exp(log_plan - largest)
        total = plan.sum()
        residual = largest + np.log(total)
        plan /= total
        if abs(residual) <= _TOLERANCE * max(1.0, abs(potential)):
            return float(potential), plan
        # The residual rises in the potential at a slope between 1 - strength and 1.
        nearest, farthest = potential - residual, potential - residual / (1 - strength)
        low = max(low, min(nearest, farthest))
        high = min(high, max(nearest, farthest))
        slope = 1 - strength * float(plan @ np.exp(log_mass - log_total))
        potential -= residual / slope
        if not low <= potential <= high:
            potential = (low + high) / 2
    raise AssertionError(f"a row of {len(scores)} keys did not converge")


@dataclass(frozen=True)
class Solved:
    """Potentials a[1..n] as an array [n], and the rows of P that were asked for, by their number."""

    potentials: Floats
    rows: dict[int, Floats]


def solve(n: int, strength: float, keep: Collection[int] = (), scores: Scores = constant_scores) -> Solved:
    """Solve n rows and keep the potentials and the rows numbered in `keep` (from 1)."""
    potentials, rows = np.empty(n), {}
    for i, (potential, plan) in enumerate(transport_rows(n, strength, scores), start=1):
        potentials[i - 1] = potential
        if i in keep:
            rows[i] = plan
    return Solved(potentials, rows)


def amplitude(strength: float) -> float:
    """A = Gamma(1 - strength)^(-1 / (1 - strength)), the limit of i * exp(a[i]) for constant scores."""
    return float(gamma(1 - strength) ** (-1 / (1 - strength)))


def profile(t: float, strength: float) -> float:
    """f(t) = (ln 1/t)^-strength / Gamma(1 - strength), the limit of i * P[i, t i] for constant scores."""
    return float(np.log(1 / t) ** -strength / gamma(1 - strength))


def profile_mass(share: float, strength: float) -> float:
    """Integral of f over its last `share` of [0, 1]: the window mass to which a window of share * n keys tends."""
    return float(gammainc(1 - strength, -np.log1p(-share)))


def window_mass_limit(window: int, n: int, strength: float) -> float:
    """H_w(strength) / (Gamma(1 - strength) n^(1 - strength)): what the window mass approaches for a fixed window."""
    return float(harmonic(window, strength) / (gamma(1 - strength) * n ** (1 - strength)))


def window_mass_of(row: Floats, window: int) -> float:
    """Mass of a row of P on its `window` nearest keys."""
    return float(row[-window:].sum())


def far_mass_of(rows: dict[int, Floats], n: int, window: int) -> float:
    """Mass at distance >= window, averaged over the last `window` of n rows, as training measures it."""
    return float(np.mean([1 - window_mass_of(rows[i], window) for i in range(n - window + 1, n + 1)]))


def ratio_bound(bound: float, strength: float) -> float:
    """Largest P over P of constant scores, or the inverse, at any position and length for scores within +-bound.

    Scores that move by at most M move the fixed point of a sweep by at most M (1 + strength) / (1 - strength), since a
    sweep contracts by `strength`; the plan then moves by at most 2 M (1 + strength) / (1 - strength).
    """
    return float(np.exp(2 * bound * (1 + strength) / (1 - strength)))


@dataclass(frozen=True)
class RatioToConstant:
    """P for bounded scores over P for constant scores, in the rows up to each length.

    smallest, largest: over all positions of the rows 1 .. n, by n. bins: by n, mass in equal bins of t = j / i over the
    mass there for constant scores, both summed over the last n / bins rows.
    """

    smallest: dict[int, float]
    largest: dict[int, float]
    bins: dict[int, Floats]


def ratios_to_constant(
    lengths: Collection[int], strength: float, bounds: Sequence[float], seed: int, bins: int = 8
) -> dict[float, RatioToConstant]:
    """Compare random scores within each of `bounds` with constant ones, at each length.

    A row is the same for every length, and its scores are the same for every bound but for their size.
    """
    found = {bound: RatioToConstant({}, {}, {}) for bound in bounds}
    extremes = dict.fromkeys(bounds, (np.inf, 0.0))
    sums = {(bound, length): np.zeros((2, bins)) for bound in bounds for length in lengths}
    n = max(lengths)
    problems = [transport_rows(n, strength, bounded_scores(bound, seed)) for bound in bounds]
    for i, (solved, (_, constant)) in enumerate(
        zip(zip(*problems, strict=True), transport_rows(n, strength), strict=True), start=1
    ):
        edges = np.arange(bins) * i // bins
        for bound, (_, plan) in zip(bounds, solved, strict=True):
            ratio = plan / constant
            low, high = extremes[bound]
            extremes[bound] = min(low, float(ratio.min())), max(high, float(ratio.max()))
            for length in lengths:
                if length - length // bins < i <= length:
                    sums[bound, length] += [np.add.reduceat(plan, edges), np.add.reduceat(constant, edges)]
            if i in lengths:
                found[bound].smallest[i], found[bound].largest[i] = extremes[bound]
                found[bound].bins[i] = sums[bound, i][0] / sums[bound, i][1]
    return found
