"""Margin selection: how far above 1 an exponent must stay for the far mass to stop growing with length.

A tolerance tau on the growth of the prior's far mass from length n0 to n1 is turned into the smallest delta >= 0 with
F(1 + delta; n1) - F(1 + delta; n0) <= tau. Growth is not monotone in the exponent below 1, so the search goes upward
from 1. `margin_stage` writes the margins that the `log-margin-*` arms train with. Pure NumPy and SciPy, no torch.
"""

from pathlib import Path

from causal_priors.artifacts import read_signed_json, write_signed_json
from causal_priors.errors import refuse
from causal_priors.remedies import rebuild
from causal_priors.scale import Scale
from causal_priors.theory.window_mass import far_mass

# The registered tolerances; every one is an arm (A12).
TOLERANCES = {"log-margin-t050": 0.05, "log-margin-t020": 0.02, "log-margin-t005": 0.005}

LARGEST_EXPONENT = 20.0  # the registered range of exponents ends here
_STEP = 0.05


def far_mass_growth(exponent: float, window: int, n0: int, n1: int) -> float:
    """Far mass at length n1 minus far mass at n0, both of the prior alone."""
    return far_mass(exponent, n1, window) - far_mass(exponent, n0, window)


def margin(window: int, n0: int, n1: int, tolerance: float) -> float:
    """Return the smallest delta >= 0 whose far-mass growth from n0 to n1 is at most `tolerance`.

    The result errs upward by less than 1e-12 and never breaks the tolerance. Raises `UserError` where window, lengths
    or tolerance make no sense, and where no exponent up to 20 meets the tolerance.
    """
    if not tolerance > 0:
        raise refuse("is not above 0", key="tolerance", value=tolerance, remedy="give the far-mass growth you accept")
    if not 1 <= window < n0:
        raise refuse(
            f"is no window shorter than n0 = {n0}", key="window", value=window, remedy="choose 1 <= window < n0"
        )
    if n1 <= n0:
        raise refuse(f"is not longer than n0 = {n0}", key="n1", value=n1, remedy="choose n1 > n0")

    def meets(delta: float) -> bool:
        return far_mass_growth(1 + delta, window, n0, n1) <= tolerance

    fails, holds = 0.0, 0.0
    while not meets(holds):
        fails, holds = holds, holds + _STEP
        if 1 + holds > LARGEST_EXPONENT:
            raise refuse(
                f"cannot be met from n0 = {n0} to n1 = {n1} at window {window} by exponents up to {LARGEST_EXPONENT:g}",
                key="tolerance",
                value=tolerance,
                remedy="accept more growth or widen the window",
            )
    while holds - fails > 1e-12:
        middle = (fails + holds) / 2
        fails, holds = (fails, middle) if meets(middle) else (middle, holds)
    return holds


def margin_stage(scale: Scale, out_path: str | Path) -> None:
    """Write the margins of the registered arms at `scale`: window L/8, growth from L to 8L, L of size S.

    The file holds `{"inputs": {...}, "margins": {arm: delta}}` and its digest; read it with `read_margins`.
    """
    length = scale.sizes["S"].train_length
    window, longest = length // 8, 8 * length
    margins = {arm: margin(window, length, longest, tolerance) for arm, tolerance in TOLERANCES.items()}
    inputs = {"size": "S", "window": window, "n0": length, "n1": longest, "tolerances": TOLERANCES}
    write_signed_json(out_path, {"inputs": inputs, "margins": margins})


def read_margins(path: str | Path) -> dict[str, float]:
    """Return arm -> delta from a file that `margin_stage` wrote.

    Raises `UserError` where the file is missing or damaged.
    """
    margins = read_signed_json(path, rebuild(path)).get("margins")
    if not isinstance(margins, dict) or not all(isinstance(delta, float) for delta in margins.values()):
        raise refuse("holds no margins", file=path, remedy=rebuild(path))
    return margins
