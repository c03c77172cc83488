"""What an analysis returns: a tidy table, and what could not be in it, with the reason."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd


@dataclass(frozen=True)
class Absent:
    """Something that a table should hold and does not: an item (a test, a run) and the reason."""

    item: str
    reason: str


@dataclass(frozen=True)
class Result:
    """One table of the exploratory analyses."""

    rows: pd.DataFrame
    absent: tuple[Absent, ...] = ()


def collect(found: Iterable[dict[str, Any] | Absent], columns: Sequence[str]) -> Result:
    """Part rows from what is absent."""
    items = list(found)
    rows = [item for item in items if isinstance(item, dict)]
    left_out = [item for item in items if isinstance(item, Absent)]
    return Result(pd.DataFrame(rows, columns=list(columns)), tuple(dict.fromkeys(left_out)))


def joined(results: Sequence[Result]) -> Result:
    """Return the rows of several tables of the same columns as one."""
    rows = pd.concat([found.rows for found in results], ignore_index=True)
    return Result(rows, tuple(item for found in results for item in found.absent))


def identity_of(rows: pd.DataFrame, names: Sequence[str]) -> dict[str, Any]:
    """Return what all `rows` share in these columns."""
    return {name: rows[name].iloc[0] for name in names}


def by_run(frame: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the rows of each run, by name."""
    for run, rows in frame.groupby("run", sort=True):
        yield str(run), rows
