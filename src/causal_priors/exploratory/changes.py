"""What a change of the bias does, place by place: cap and repair, and their negative controls.

A change beyond L can reach no position 1..L, and has more to work with the farther a position lies; so the effect is
shown per bin of positions, at windows of 8L, beside the far mass at both of its windows.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from causal_priors.exploratory.bootstrap import UNRESOLVED, paired_interval
from causal_priors.exploratory.result import Absent, Result, by_run, collect, identity_of
from causal_priors.runs import EVALUATION_FACTORS

COLUMNS = ["run", "arm", "size", "train_length", "seed", "dtype", "variant", "status", "quantity", "first", "last"]
COLUMNS += ["far_window", "before", "after", "change", "low", "high", "sign", "blocks", "equal_rows", "rows"]
FULL = EVALUATION_FACTORS[-1]
# What the stage `control` measures beside "plain".
CONTROLS = ("identity", "sham", "sham-even")
_PLACE = ["quantity", "bin", "far_window", "block", "window"]
_IDENTITY = ["arm", "size", "train_length", "seed", "dtype"]


def changes(
    frame: pd.DataFrame,
    wanted: Mapping[tuple[str, str], str],
    gone: Mapping[str, str],
    resolutions: Mapping[tuple[str, str], float],
) -> Result:
    """Return one row per run, variant and place: mean before and after, the change, and its interval over blocks.

    frame: rows of kind "evaluation", in which each run measured its variants beside "plain" once. wanted: by run and
    variant, "registered" or "exploratory"; what is not in `frame` is absent. gone: runs without a result, with why.
    first and last: positions of the targets, counted from 1, for losses in nats per target; far_window: for far mass, a
    share of attention. resolutions: by quantity and dtype; below it a change is rounding, which no interval over blocks
    can tell, and its sign is "unresolved". equal_rows: how many of `rows` measured values (blocks and windows) are the
    same to the last bit.
    """
    rows = list(_rows(frame[frame["length"] == FULL * frame["train_length"]], wanted, gone))
    for row in rows:
        if isinstance(row, dict) and 0 < abs(row["change"]) < resolutions.get((row["quantity"], row["dtype"]), 0):
            row["sign"] = UNRESOLVED
    return collect(rows, COLUMNS)


def _rows(
    frame: pd.DataFrame, wanted: Mapping[tuple[str, str], str], gone: Mapping[str, str]
) -> Iterator[dict[str, Any] | Absent]:
    measured = dict(by_run(frame[frame["quantity"].isin(["loss", "far_mass"])]))
    for (run, variant), status in wanted.items():
        if run not in measured or variant not in set(measured[run]["variant"]):
            yield Absent(f"{variant} of {run}", gone.get(run, "is missing"))
            continue
        rows = measured[run]
        identity = {"run": run, **identity_of(rows, _IDENTITY), "variant": variant, "status": status}
        sides = rows[rows["variant"].isin(["plain", variant])]
        doubled = sides.duplicated([*_PLACE, "variant"]).any()
        wide = pd.DataFrame() if doubled else sides.set_index([*_PLACE, "variant"])["value"].unstack("variant")
        if wide.shape[1] != 2 or not np.isfinite(wide.to_numpy()).all():
            yield Absent(f"{variant} of {run}", "is not whole: rows are missing, doubled or not finite")
            continue
        for (quantity, number, far_window), part in wide.groupby(level=[0, 1, 2]):
            place = _place(str(quantity), number, far_window, identity["train_length"])
            yield {**identity, **place, **_change(part, variant)}


def _place(quantity: str, number: Any, far_window: Any, length: int) -> dict[str, Any]:
    if quantity == "far_mass":
        return {"quantity": quantity, "far_window": far_window}
    ends = [0, *EVALUATION_FACTORS]
    first, last = ends[number] * length + 1, ends[number + 1] * length
    return {"quantity": quantity, "first": first, "last": last}


def _change(part: pd.DataFrame, variant: str) -> dict[str, Any]:
    # Rows of one place weigh the same: a bin holds as many targets in every block.
    by_block = part.groupby(level="block").mean()
    found = paired_interval(by_block[variant] - by_block["plain"])
    return {
        "before": float(by_block["plain"].mean()),
        "after": float(by_block[variant].mean()),
        "change": found.mean,
        "low": found.low,
        "high": found.high,
        "sign": found.sign,
        "blocks": found.n,
        "equal_rows": int((part[variant] == part["plain"]).sum()),
        "rows": len(part),
    }
