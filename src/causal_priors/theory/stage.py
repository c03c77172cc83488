"""The theory stage: one table of numbers that need no training, each beside what the theory says it tends to.

Most rows are at the source's lengths (512 to 4096, window 64) whatever the scale, so that they can be compared with its
text; the results "far mass at this scale" and "margin at this scale" are at the lengths that the scale trains and
evaluates at. Every row is recomputed in seconds, in float64, without torch.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from causal_priors.arms import ARMS
from causal_priors.artifacts import atomic_path
from causal_priors.priors.formulas import alibi_slopes, initial_exponents
from causal_priors.scale import Scale
from causal_priors.theory.classify import EDITS, classify
from causal_priors.theory.linear_mass import linear_far_mass, linear_far_mass_limit
from causal_priors.theory.margin import TOLERANCES, margin
from causal_priors.theory.transport_prior import (
    Solved,
    amplitude,
    far_mass_of,
    profile,
    profile_mass,
    ratio_bound,
    ratios_to_constant,
    solve,
    window_mass_limit,
    window_mass_of,
)
from causal_priors.theory.window_mass import (
    far_mass,
    far_mass_limit,
    mean_far_mass,
    window_mass,
    window_mass_bounds,
)

# One row per number.
#   result          the statement of the theory that it belongs to: "amplitude", "profile", "window mass",
#                   "bounded scores", "dilution", "far mass", "margin", "classification"; "... at this scale" at the
#                   scale's own lengths
#   quantity        what was computed, in words
#   n               length in tokens; null for a statement about all lengths
#   value           masses are shares of attention; a classification is 1, 0, or null where parameters or data decide
#   limit           what the value tends to as n grows (at this n, where the limit still moves with n), or the bound
#                   that it cannot pass, where `quantity` says bound; null where there is none
#   relative_error  value / limit - 1; null without a limit
SCHEMA = pa.schema(
    [
        ("result", pa.string()),
        ("quantity", pa.string()),
        ("n", pa.int64()),
        ("value", pa.float64()),
        ("limit", pa.float64()),
        ("relative_error", pa.float64()),
    ]
)
_STAMP = {"kind": "theory", "version": "1"}

LENGTHS = (512, 1024, 2048, 4096)
LONG = (512, 1024, 4096, 32768, 10**6, 10**9)
WINDOW = 64
NARROW = 32
SHARE = 1 / 8
STRENGTHS = (0.25, 0.5, 0.75, 0.8)
EXPONENTS = (0.5, 1.0, 1.1, 1.5, 2.0)
BOUNDS = (0.5, 1.0, 2.0)
SEED = 0
SOURCE_TOLERANCES = (0.1, 0.05, 0.03, 0.02, 0.01, 0.005)

Row = dict[str, Any]


def theory_stage(scale: Scale, out_parquet: str | Path, out_csv: str | Path) -> None:
    """Write the table of theory at `scale` as parquet and, the same rows, as csv."""
    write_theory(theory_rows(scale), out_parquet, out_csv)


def write_theory(rows: Iterable[Mapping[str, Any]], out_parquet: str | Path, out_csv: str | Path) -> None:
    """Write rows in the columns of `SCHEMA`."""
    table = pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMA)
    with atomic_path(out_parquet) as temporary:
        pq.write_table(table.replace_schema_metadata(_STAMP), temporary, compression="zstd")
    with atomic_path(out_csv) as temporary:
        table.to_pandas().to_csv(temporary, index=False, float_format="%.10g", lineterminator="\n")


def theory_rows(scale: Scale) -> list[Row]:
    """Return every row at `scale`."""
    length = scale.sizes["S"].train_length
    ends = {(512, WINDOW), (4096, WINDOW), (length, length // 8), (8 * length, length // 8)}
    keep = {*LENGTHS, *(i for n, window in ends for i in range(n - window + 1, n + 1))}
    solved = {strength: solve(max(keep), strength, keep) for strength in STRENGTHS}
    return [
        *_amplitudes(solved),
        *_profiles(solved),
        *_window_masses(solved),
        *_bounded_scores(0.5),
        *_dilution(),
        *_far_mass_of_arms("far mass", solved, 8, 512, 4096, WINDOW),
        *_far_mass_of_arms("far mass at this scale", solved, scale.sizes["S"].heads, length, 8 * length, length // 8),
        *_margins("margin", SOURCE_TOLERANCES, 512, 4096, WINDOW),
        *_margins("margin at this scale", TOLERANCES.values(), length, 8 * length, length // 8),
        *_classification(),
    ]


def _row(result: str, quantity: str, n: int | None, value: float | None, limit: float | None = None) -> Row:
    error = None if value is None or not limit else value / limit - 1
    return {"result": result, "quantity": quantity, "n": n, "value": value, "limit": limit, "relative_error": error}


def _amplitudes(solved: Mapping[float, Solved]) -> Iterator[Row]:
    for strength, found in solved.items():
        for n in LENGTHS:
            value = float(n * np.exp(found.potentials[n - 1]))
            yield _row("amplitude", f"i exp(a[i]), strength {strength:g}", n, value, amplitude(strength))


def _profiles(solved: Mapping[float, Solved]) -> Iterator[Row]:
    for strength, found in solved.items():
        for n in LENGTHS:
            value = float(n * found.rows[n][n // 2 - 1])
            yield _row("profile", f"i P[i, i/2], strength {strength:g}", n, value, profile(0.5, strength))


def _window_masses(solved: Mapping[float, Solved]) -> Iterator[Row]:
    for strength, found in solved.items():
        fixed = {n: window_mass_of(found.rows[n], NARROW) for n in LENGTHS}
        for n, value in fixed.items():
            quantity = f"last {NARROW} keys, strength {strength:g}"
            yield _row("window mass", quantity, n, value, window_mass_limit(NARROW, n, strength))
        for n in LENGTHS[1:]:
            quantity = f"last {NARROW} keys, over that at n/2, strength {strength:g}"
            yield _row("window mass", quantity, n, fixed[n] / fixed[n // 2], 2 ** -(1 - strength))
        for n in LENGTHS:
            value = window_mass_of(found.rows[n], int(SHARE * n))
            yield _row("window mass", f"last n/8 keys, strength {strength:g}", n, value, profile_mass(SHARE, strength))


def _bounded_scores(strength: float) -> Iterator[Row]:
    for bound, found in ratios_to_constant(LENGTHS, strength, BOUNDS, SEED).items():
        where = f"scores within {bound:g}, strength {strength:g}"
        limit = ratio_bound(bound, strength)
        for n in LENGTHS:
            yield _row("bounded scores", f"smallest ratio up to n (bound), {where}", n, found.smallest[n], 1 / limit)
            yield _row("bounded scores", f"largest ratio up to n (bound), {where}", n, found.largest[n], limit)
            for number, value in enumerate(found.bins[n], start=1):
                quantity = f"ratio in bin {number} of {len(found.bins[n])} of t, last n/8 rows, {where}"
                yield _row("bounded scores", quantity, n, float(value), 1.0)


def _dilution() -> Iterator[Row]:
    for exponent in EXPONENTS:
        for n in LONG:
            value = float(window_mass(WINDOW, n, exponent))
            for name, bound in zip(("lower", "upper"), window_mass_bounds(WINDOW, n, exponent), strict=True):
                quantity = f"window mass of {WINDOW} keys ({name} bound), exponent {exponent:g}"
                yield _row("dilution", quantity, n, value, float(bound))
            quantity = f"far mass beyond {WINDOW} keys, exponent {exponent:g}"
            yield _row("dilution", quantity, n, far_mass(exponent, n, WINDOW), far_mass_limit(exponent, WINDOW))


def _far_mass_of_arms(
    result: str, solved: Mapping[float, Solved], heads: int, short: int, long: int, window: int
) -> Iterator[Row]:
    """Arms whose far mass the prior fixes if content says nothing."""
    exponents, slopes = initial_exponents("fixed", heads), alibi_slopes(heads)
    for n in (short, long):
        limit = float(np.mean([far_mass_limit(exponent, window) for exponent in exponents]))
        yield _row(result, "log-fixed", n, mean_far_mass(exponents, n, window), limit)
        limit = float(np.mean([linear_far_mass_limit(slope, window) for slope in slopes]))
        yield _row(result, "alibi", n, float(np.mean([linear_far_mass(slope, n, window) for slope in slopes])), limit)
        for strength in (0.5, 0.75, 0.8):
            value = far_mass_of(solved[strength].rows, n, window)
            yield _row(result, f"transport of constant scores, strength {strength:g}", n, value, 1.0)


def _margins(result: str, tolerances: Iterable[float], short: int, long: int, window: int) -> Iterator[Row]:
    for tolerance in tolerances:
        quantity = f"smallest exponent minus 1 for growth at most {tolerance:g} from {short}, window {window}"
        yield _row(result, quantity, long, margin(window, short, long, tolerance))


def _classification() -> Iterator[Row]:
    for arm in ARMS.values():
        for edit in (None, *(EDITS if arm.log_prior is not None else ())):
            found = classify(arm, edit)
            value = None if found.bounded is None else float(found.bounded)
            name = arm.key if edit is None else f"{arm.key} + {edit}"
            yield _row("classification", f"{name}: far mass bounded? {found.text}", None, value)
