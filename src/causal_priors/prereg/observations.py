"""Measured values as the rules may use them, or the reason why they may not.

One cell is what one checkpoint gave for one quantity, variant and window length: one row per block, window and position
bin. A cell is used whole or not at all: a row that is doubled, missing, not finite or out of range makes every test
that needs it `not evaluated`. Rows of runs that are not registered are never looked at. Sums are exact (fsum), so the
order of rows cannot matter.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from causal_priors.prereg.decidable import admissible_range
from causal_priors.prereg.terms import Metric
from causal_priors.runs import EVALUATION_FACTORS, Run
from causal_priors.scale import Scale

# A share that is summed in float32 can pass one by its rounding.
RANGE_ROUNDING = 1e-6
Range = tuple[float, float]
_IDENTITY = ("size", "arm", "train_length", "seed")
_CELL = ["run", "stage", "variant", "quantity", "length", "far_window"]
_PLACE = ["block", "window", "bin", "count"]


class NotEvaluatedError(Exception):
    """A test cannot be decided; the text is the reason that the verdict gives."""


@dataclass(frozen=True)
class Scored:
    """A scored mean: the value, the targets behind it, its arithmetic, and which targets those were.

    `layout` is equal for two values that were measured on the same blocks, windows and bins; `rows` holds the single
    values, to recognise one run under two names.
    """

    value: float
    targets: int
    dtype: str
    layout: bytes
    rows: bytes


@dataclass(frozen=True)
class _Cell:
    """Rows of one cell, sorted: place holds block, window, bin and count, [rows, 4]."""

    place: NDArray[np.int64]
    value: NDArray[np.float64]
    dtypes: tuple[str, ...]


class Observations:
    """Evaluation rows (kind "evaluation") of the registered runs at one scale.

    `statuses` holds runs that gave no result, with the reason ("diverged at step 12").
    """

    def __init__(
        self,
        frame: pd.DataFrame,
        scale: Scale,
        runs: Iterable[Run],
        statuses: Mapping[str, str],
    ) -> None:
        self.scale = scale
        self._statuses = statuses
        names = {run.name(scale): run for run in runs}
        rows = frame[frame["run"].isin(list(names)) & frame["quantity"].isin(["loss", "far_mass"])]
        self._cells = _cells(rows)
        self._seen = {key[0] for key in self._cells}
        self._impostors = _impostors(rows, names, scale)

    def missing(self, runs: Iterable[Run]) -> str:
        """Return why some of `runs` have no result, or an empty text."""
        names = [run.name(self.scale) for run in runs]
        reasons = [f"run {name} {self._statuses[name]}" for name in names if name in self._statuses]
        absent = [name for name in names if name not in self._seen and name not in self._statuses]
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            reasons.append(f"{'run' if len(absent) == 1 else 'runs'} {', '.join(absent[:3])}{more} missing")
        return "; ".join(reasons)

    def scored(
        self, run: Run, stage: str, variant: str, metric: Metric, length: int, blocks: str, rows_in: Range
    ) -> Scored:
        """Return `metric` of one checkpoint at `length` times L on `blocks` ("all" | "even" | "odd").

        rows_in: admissible range of the single values, which differs from the metric's where that is a difference.
        Raises `NotEvaluatedError` with the reason.
        """
        found = self._mean(run, stage, variant, metric, length, blocks, rows_in)
        if metric.minus_at is None:
            return found
        base = self._mean(run, stage, variant, metric, metric.minus_at, blocks, rows_in)
        if found.dtype != base.dtype:
            raise NotEvaluatedError(f"run {run.name(self.scale)} was evaluated in {found.dtype} and {base.dtype}")
        value = found.value - base.value
        low, high = admissible_range(metric, self.scale.vocabulary)
        if not low - RANGE_ROUNDING <= value <= high + RANGE_ROUNDING:
            raise NotEvaluatedError(f"{metric.name} of run {run.name(self.scale)} is {value:g}, outside its range")
        targets = min(found.targets, base.targets)
        return Scored(value, targets, found.dtype, found.layout + base.layout, found.rows + base.rows)

    def _mean(
        self, run: Run, stage: str, variant: str, metric: Metric, length: int, blocks: str, rows_in: Range
    ) -> Scored:
        cell = self._cell(run, stage, variant, metric, length, rows_in)
        chosen = self._chosen(cell, run, metric, blocks)
        value, weight = cell.value[chosen], cell.place[chosen, 3]
        tokens = length * run.train_length(self.scale)
        return Scored(
            value=math.fsum(value * weight) / float(weight.sum()),
            targets=int(weight.sum()) if metric.quantity == "loss" else len(value) * tokens,
            dtype=cell.dtypes[0],
            layout=cell.place.tobytes(),
            rows=cell.value.tobytes(),
        )

    def per_block(
        self, run: Run, stage: str, variant: str, metric: Metric, length: int, blocks: str
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the numbers of the blocks and the mean of `metric` in each, for what `scored` averages.

        Every block holds as many targets, so the mean of the means is the scored one, rounding apart. Raises
        `NotEvaluatedError` where the cell is not whole; ranges are left to `scored`.
        """
        cell = self._cell(run, stage, variant, metric, length, (-math.inf, math.inf))
        chosen = self._chosen(cell, run, metric, blocks)
        numbers, at = np.unique(cell.place[chosen, 0], return_inverse=True)
        value, weight = cell.value[chosen], cell.place[chosen, 3]
        means = np.bincount(at, value * weight) / np.bincount(at, weight)
        if metric.minus_at is None:
            return numbers, means
        base = self.per_block(run, stage, variant, replace(metric, minus_at=None), metric.minus_at, blocks)
        if not np.array_equal(numbers, base[0]):
            raise NotEvaluatedError(
                f"run {run.name(self.scale)} has other blocks at {length} L and {metric.minus_at} L"
            )
        return numbers, means - base[1]

    def _chosen(self, cell: _Cell, run: Run, metric: Metric, blocks: str) -> NDArray[np.bool_]:
        """Rows of a cell that a metric averages on these blocks."""
        block, _, number, _ = cell.place.T
        chosen = np.ones(len(block), dtype=bool)
        if blocks != "all":
            chosen &= block % 2 == (0 if blocks == "even" else 1)
        if metric.positions == "beyond":
            chosen &= number >= 1
        if not chosen.any():
            raise NotEvaluatedError(f"run {run.name(self.scale)} has no {blocks} blocks")
        return chosen

    def _cell(self, run: Run, stage: str, variant: str, metric: Metric, length: int, rows_in: Range) -> _Cell:
        name, train_length = run.name(self.scale), run.train_length(self.scale)
        if name in self._statuses:
            raise NotEvaluatedError(f"run {name} {self._statuses[name]}")
        if name in self._impostors:
            raise NotEvaluatedError(self._impostors[name])
        what = f"{metric.quantity} ({variant}) at {length * train_length} tokens of run {name}"
        far_window = -1 if metric.far_window is None else round(metric.far_window * train_length)
        cell = self._cells.get((name, stage, variant, metric.quantity, length * train_length, far_window))
        if cell is None:
            raise NotEvaluatedError(f"{what} is missing")
        if not (cell.place[1:, :3] != cell.place[:-1, :3]).any(axis=1).all():
            raise NotEvaluatedError(f"{what} has duplicate rows")
        if len(cell.dtypes) > 1:
            raise NotEvaluatedError(f"{what} mixes {' and '.join(cell.dtypes)}")
        expected = self._layout(run, metric, length, np.unique(cell.place[:, 0]))
        if not np.array_equal(expected, cell.place):
            problem = f"does not cover its blocks: {len(cell.place)} rows of {len(expected)}, or other counts"
            raise NotEvaluatedError(f"{what} {problem}")
        _check_values(cell.value, rows_in, what)
        return cell

    def _layout(self, run: Run, metric: Metric, length: int, blocks: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows (block, window, bin, count) of a whole cell: windows fill each block, bins fill each window."""
        train_length, budget = run.train_length(self.scale), run.budget(self.scale)
        if metric.far_window is None:
            ends = [0, *(factor for factor in EVALUATION_FACTORS if factor <= length)]
            bins = [(number, (ends[number + 1] - ends[number]) * train_length) for number in range(len(ends) - 1)]
        else:
            bins = [(-1, budget.heads * budget.depth * round(metric.far_window * train_length))]
        windows = EVALUATION_FACTORS[-1] // length
        places = [(window, number, count) for window in range(windows) for number, count in bins]
        # A row with block -1 belongs to no block, so it has no place here.
        rows = [(block, *place) for block in blocks.tolist() if block >= 0 for place in places]
        return np.array(rows, dtype=np.int64).reshape(-1, 4)


def _cells(rows: pd.DataFrame) -> dict[tuple[Any, ...], _Cell]:
    """Sort rows by cell and place, and cut them into cells."""
    codes = [pd.factorize(rows[column])[0] for column in _CELL]
    # A damaged table may hold nulls; -1 fits no place and no count.
    place = rows[_PLACE].fillna(-1).to_numpy(np.int64)
    value = rows["value"].to_numpy(np.float64)
    order = np.lexsort((value, *place.T[::-1], *codes))
    changes = (np.diff(np.stack(codes)[:, order], axis=1) != 0).any(axis=0)
    edges = [0, *(np.flatnonzero(changes) + 1).tolist(), len(order)] if len(order) else []
    keys, dtypes = [rows[column].to_numpy() for column in _CELL], rows["dtype"].to_numpy()
    cells = {}
    for first, end in pairwise(edges):
        chosen = order[first:end]
        key = tuple(column[chosen[0]] for column in keys)
        cells[key] = _Cell(place[chosen], value[chosen], tuple(sorted({str(dtype) for dtype in dtypes[chosen]})))
    return cells


def _check_values(values: NDArray[np.float64], rows_in: Range, what: str) -> None:
    if not np.isfinite(values).all():
        raise NotEvaluatedError(f"{what} holds a non-finite value")
    low, high = rows_in
    outside = values[(values < low - RANGE_ROUNDING) | (values > high + RANGE_ROUNDING)]
    if len(outside):
        raise NotEvaluatedError(f"{what} holds {outside[0]:g}, outside its range {low:g} to {high:.4g}")


def _impostors(rows: pd.DataFrame, names: Mapping[str, Run], scale: Scale) -> dict[str, str]:
    """Runs whose rows say of themselves what their name does not say, with the reason."""
    found: dict[str, str] = {}
    for row in rows[["run", *_IDENTITY]].drop_duplicates().sort_values(["run", *_IDENTITY]).to_dict("records"):
        run = names[row["run"]]
        expected = dict(zip(_IDENTITY, (run.size, run.arm, run.train_length(scale), run.seed), strict=True))
        for column, value in expected.items():
            if row[column] != value:
                found.setdefault(row["run"], f"the rows of run {row['run']} say {column} {row[column]}")
    return found
