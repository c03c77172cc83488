"""The distance-only log-priors as pure functions of the lag, over any array namespace.

What is trained is what is analysed: torch trains with these functions, the theory stage calls the same ones with NumPy
and imports no torch. Each takes the lag d >= 0, a mapping of parameters that broadcast against it, and the namespace
`xp` (`numpy` or `torch`); it returns b(d) in nats, with b(0) = 0. `summable` answers, head by head, whether the sum
over d of exp(b(d)) converges, in which case far mass stays bounded at any length.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

Parameters = Mapping[str, Any]


@dataclass(frozen=True)
class Formula:
    """A family of log-priors of distance alone, non-increasing in the lag.

    parameters: the names it wants. of_distance(d, parameters, xp): b(d). summable(parameters): bool per head, in the
    array type of the parameters.
    """

    name: str
    parameters: tuple[str, ...]
    of_distance: Callable[[Any, Parameters, Any], Any]
    summable: Callable[[Parameters], Any]


def log_distance(d: Any, parameters: Parameters, xp: Any) -> Any:
    """-exponent * ln(1 + d): a power law of the lag. Arms `log*`."""
    return -parameters["exponent"] * xp.log1p(d)


def kerple_distance(d: Any, parameters: Parameters, xp: Any) -> Any:
    """-power * ln(1 + rate * d), KERPLE's logarithmic kernel (Chi et al. 2022), outside the 1/sqrt(D)."""
    return -parameters["power"] * xp.log1p(parameters["rate"] * d)


def linear_distance(d: Any, parameters: Parameters, xp: Any) -> Any:
    """-slope * d, ALiBi (Press et al. 2021)."""
    return -parameters["slope"] * d


LOG = Formula("log", ("exponent",), log_distance, lambda parameters: parameters["exponent"] > 1)
KERPLE = Formula("kerple", ("power", "rate"), kerple_distance, lambda parameters: parameters["power"] > 1)
LINEAR = Formula("linear", ("slope",), linear_distance, lambda parameters: parameters["slope"] > 0)

FORMULAS: Mapping[str, Formula] = MappingProxyType({formula.name: formula for formula in (LOG, KERPLE, LINEAR)})


def alibi_slopes(heads: int) -> list[float]:
    """ALiBi's slope per head (B.3): 2^(-8h/H), h = 1..H, where H is a power of two.

    Else the set of the largest power p below H, then every other slope of the set of 2p until there are H, unsorted.
    """
    power = 2 ** int(math.log2(heads))
    own = [2.0 ** (-8 * h / power) for h in range(1, power + 1)]
    between = [2.0 ** (-8 * h / (2 * power)) for h in range(1, 2 * power + 1, 2)]
    return own + between[: heads - power]


def log_spaced(first: float, last: float, count: int) -> list[float]:
    """`count` values from `first` to `last`, evenly spaced in their logarithm; `first` alone if one is asked for."""
    ratio = math.log(last / first) / max(count - 1, 1)
    return [first * math.exp(ratio * h) for h in range(count)]


def initial_exponents(kind: str, heads: int, margin: float = 0.0) -> Sequence[float]:
    """Exponents of a log arm before training (A14, A16), head by head. Kinds as in `priors.distance.LogDistance`."""
    if kind == "free":
        return log_spaced(0.5, 1.5, heads)
    if kind == "fixed":
        return log_spaced(0.7, 1.0, heads)
    return [{"above-one": 1.5, "below-one": 0.7, "margin": 1.5 + margin}[kind]] * heads
