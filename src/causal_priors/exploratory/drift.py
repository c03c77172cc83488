"""Exponents over training: does it drive them to one, where a log-prior ceases to be summable?

Arms start on one side of it, on both, or next to it (A16); heads are followed one by one, layer by layer.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd

from causal_priors.exploratory.result import Absent, Result, by_run, collect, identity_of

BOUNDARY, NEAR = 1.0, 0.1
IDENTITY = ["run", "arm", "size", "train_length", "seed"]
STEPS = [*IDENTITY, "step", "heads", "mean", "smallest", "largest", "near_one", "above_one"]
MOVED = [*IDENTITY, "heads", "start_mean", "end_mean", "start_distance", "end_distance"]
MOVED += ["near_at_start", "near_at_end", "nearer", "farther", "crossed"]


def over_steps(positions: pd.DataFrame) -> Result:
    """Return the exponents of each run at each logged step: mean, range, and shares of heads near and above one.

    positions: rows of kind "positions" with the columns of `IDENTITY`. near_one: share of heads within `NEAR` of one.
    """
    rows = positions[positions["quantity"] == "exponent"]
    rows = rows.assign(near=_near(rows["value"]), above=rows["value"] > BOUNDARY)
    found = rows.groupby([*IDENTITY, "step"]).agg(
        heads=("value", "size"),
        mean=("value", "mean"),
        smallest=("value", "min"),
        largest=("value", "max"),
        near_one=("near", "mean"),
        above_one=("above", "mean"),
    )
    return Result(found.reset_index()[STEPS])


def moved(positions: pd.DataFrame, statuses: Mapping[str, str]) -> Result:
    """Return where the exponents of each run started and ended. Distances are from one; counts are of heads.

    nearer, farther: heads that ended nearer to one than they started, or farther from it; crossed: that ended on the
    other side. statuses: runs without a result, with why; those are absent, as they did not end their training.
    """

    def rows() -> Iterator[dict[str, Any] | Absent]:
        for run, part in by_run(positions[positions["quantity"] == "exponent"]):
            if run in statuses:
                yield Absent(run, statuses[run])
                continue
            heads = part.set_index(["layer", "head"])
            steps = heads["step"]
            start, end = (heads.loc[steps == step, "value"] for step in (steps.min(), steps.max()))
            before, after = (start - BOUNDARY).abs(), (end - BOUNDARY).abs()
            yield {
                **identity_of(part, IDENTITY),
                "heads": len(start),
                "start_mean": start.mean(),
                "end_mean": end.mean(),
                "start_distance": before.mean(),
                "end_distance": after.mean(),
                "near_at_start": _near(start).sum(),
                "near_at_end": _near(end).sum(),
                "nearer": (after < before).sum(),
                "farther": (after > before).sum(),
                "crossed": ((start > BOUNDARY) != (end > BOUNDARY)).sum(),
            }

    return collect(rows(), MOVED)


def _near(value: pd.Series) -> pd.Series:
    # As in scoring: a tie in decimals is a tie.
    return (value - BOUNDARY).abs().round(12) <= NEAR
