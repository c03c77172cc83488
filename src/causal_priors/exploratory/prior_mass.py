"""Far mass as it was measured beside the far mass that position alone predicts.

The prediction is attention whose content scores are all equal: what a query's keys weigh under the trained log-prior,
head by head, averaged over the last w queries as the measurement is. Rotations and log-n scales act on content, so they
drop out. Without a log-prior every key weighs the same. Transport is solved row by row over the same biases. Where the
bias comes from the tokens there is no prediction. The rest is what content does to where attention goes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from causal_priors.arms import Arm
from causal_priors.exploratory.result import Absent, Result, by_run, collect, identity_of
from causal_priors.priors.formulas import Formula
from causal_priors.theory.classify import formula_of
from causal_priors.theory.transport_prior import far_mass_of, solve

COLUMNS = ["run", "arm", "size", "train_length", "seed", "length", "far_window", "layer", "head"]
COLUMNS += ["measured", "predicted", "difference"]
Floats = NDArray[np.float64]
_IDENTITY = ["run", "arm", "size", "train_length", "seed"]


def far_masses(
    frame: pd.DataFrame, positions: pd.DataFrame, arms: Mapping[str, Arm], statuses: Mapping[str, str]
) -> Result:
    """Return measured and predicted far mass per run, window length, far window, layer and head.

    frame: rows of kind "evaluation". positions: rows of kind "positions" with a column `run`; the last logged step
    gives the parameters. arms: rows of the study's table. statuses: runs without a result, with why.
    """
    measured = frame[(frame["quantity"] == "far_mass_head") & (frame["variant"] == "plain")]
    trained = {run: _trained(rows) for run, rows in by_run(positions)}

    def rows() -> Iterator[dict[str, Any] | Absent]:
        for run, reason in statuses.items():
            yield Absent(run, reason)
        for run, part in by_run(measured[measured["stage"] == "evaluate"]):
            arm = arms.get(part["arm"].iloc[0])
            if arm is None:
                yield Absent(run, "is of an arm of one's own, whose log-prior has no formula here")
            elif (problem := _no_prediction(arm)) is not None:
                yield Absent(f"arm {arm.key}", problem)
            elif arm.log_prior is not None and run not in trained:
                yield Absent(run, "has no logged parameters")
            else:
                yield from _of_run(part, arm, trained.get(run, {}))

    return collect(rows(), COLUMNS)


def _trained(rows: pd.DataFrame) -> dict[tuple[int, int], dict[str, float]]:
    """What the log-prior of each layer and head reported last."""
    found: dict[tuple[int, int], dict[str, float]] = {}
    for row in rows[rows["step"] == rows["step"].max()].to_dict("records"):
        found.setdefault((row["layer"], row["head"]), {})[row["quantity"]] = row["value"]
    return found


def _no_prediction(arm: Arm) -> str | None:
    """Why nothing is predicted for `arm`, if so."""
    if arm.transport is not None and arm.transport.solver != "exact":
        return "its transport stops after some sweeps"
    if arm.log_prior is not None and formula_of(arm.log_prior, {}) is None:
        return "its bias is computed from the tokens, or is no function of distance alone"
    return None


def _of_run(
    part: pd.DataFrame, arm: Arm, trained: Mapping[tuple[int, int], Mapping[str, float]]
) -> Iterator[dict[str, Any]]:
    identity = identity_of(part, _IDENTITY)
    strength = 0.0 if arm.transport is None else arm.transport.strength
    windows = tuple(sorted(int(window) for window in part["far_window"].unique()))
    for row in part.to_dict("records"):
        bias = bias_of(arm, trained.get((row["layer"], row["head"]), {}))
        masses = dict(zip(windows, far_mass(bias, strength, row["length"], windows), strict=True))
        measured, predicted = row["value"], masses[row["far_window"]]
        places = {key: row[key] for key in ("length", "far_window", "layer", "head")}
        numbers = {"measured": measured, "predicted": predicted, "difference": measured - predicted}
        yield {**identity, **places, **numbers}


@dataclass(frozen=True)
class Bias:
    """A log-prior of distance alone: its formula, None for b = 0, and its parameters by name."""

    formula: Formula | None
    parameters: tuple[tuple[str, float], ...] = ()

    def of(self, lags: int) -> Floats:
        """b(0), b(1), ..., [lags]."""
        if self.formula is None:
            return np.zeros(lags)
        return np.asarray(self.formula.of_distance(np.arange(lags, dtype=np.float64), dict(self.parameters), np))


def bias_of(arm: Arm, reported: Mapping[str, float]) -> Bias:
    """Return the bias of a head of `arm` whose log-prior reports these parameters."""
    found = None if arm.log_prior is None else formula_of(arm.log_prior, reported)
    if found is None:
        return Bias(None)
    formula, parameters = found
    return Bias(formula, tuple((name, float(value)) for name, value in parameters.items()))


@lru_cache(maxsize=4096)
def far_mass(bias: Bias, strength: float, n: int, windows: tuple[int, ...]) -> tuple[float, ...]:
    """Mass at distance >= w, averaged over the last w of n queries, for each w, where content scores are all equal.

    strength: of transport, 0 for softmax.
    """
    values = bias.of(n)
    if strength:
        wanted = range(n - max(windows) + 1, n + 1)
        rows = solve(n, strength, wanted, lambda i: values[:i][::-1]).rows
        return tuple(far_mass_of(rows, n, w) for w in windows)
    total = np.cumsum(np.exp(values))
    seen = {w: total[n - w :] for w in windows}
    return tuple(float(np.mean(np.maximum(0, seen[w] - total[w - 1]) / seen[w])) for w in windows)
