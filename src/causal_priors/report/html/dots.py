"""Dots around a threshold line: what was observed for one registered test, one dot a seed or checkpoint.

A plot is rows of a label and a strip. Strips are SVG in percent of their width, so dots stay round and text keeps its
size from a phone to a wide screen; each strip draws its own piece of the threshold line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Record = Mapping[str, Any]
HOLDING, FALLING, UNRESOLVED = "holding", "short", "unresolved"
_HEIGHT = 22


@dataclass(frozen=True)
class Dot:
    """One observation: its place, which side it is on, and words for the one who points at it."""

    value: float
    side: str
    words: str


@dataclass(frozen=True)
class Row:
    """A label, the dots, the threshold of this row, and whether the row decides ("" | "beside" | "exploratory")."""

    label: str
    dots: Sequence[Dot]
    threshold: float
    apart: str = ""


@dataclass(frozen=True)
class Plot:
    """Rows on one scale. axis: what the scale is, in words; holding: on which side of the line a dot counts as held."""

    rows: Sequence[Row]
    axis: str
    holding: str


@dataclass(frozen=True)
class Strip:
    """A row as the page takes it."""

    label: str
    svg: str
    apart: str


def plot_of(record: Record) -> Plot | None:
    """Return the plot of a verdict record, None where nothing was observed."""
    observed = record["observed"]
    if not observed:
        return None
    unit = record["unit"]
    if "edit" in observed[0]:
        rows = _checkpoints(observed, "") + _checkpoints(record["exploratory"], "exploratory")
        return Plot(rows, f"change as predicted, {unit}", "right")
    if "comparator" in observed[0]:
        threshold = record["thresholds"]["difference"]
        rows = _comparisons(observed, threshold, "")
        for other in record["beside"]:
            rows += _comparisons(other["observed"], threshold, "beside")
        return Plot(rows, f"difference, {unit}", "right")
    return Plot(_bounded(observed), f"observed, {unit}", "left")


def _grouped(rows: Sequence[Record], *keys: str) -> dict[tuple[Any, ...], list[Record]]:
    found: dict[tuple[Any, ...], list[Record]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found


def _comparisons(observed: Sequence[Record], threshold: float, apart: str) -> list[Row]:
    lengths = {row["train_length"] for row in observed}
    found = []
    for (arm, comparator, length), rows in _grouped(observed, "arm", "comparator", "train_length").items():
        dots = [
            Dot(
                row["difference"],
                HOLDING if _holds(row["difference"], threshold) else FALLING,
                f"seed {row['seed']}: {row['comparator_value']:.4f} − {row['value']:.4f} = {row['difference']:+.4f}",
            )
            for row in rows
        ]
        label = f"{comparator} − {arm}" + (f", L {length}" if len(lengths) > 1 else "")
        found.append(Row(label, dots, threshold, apart))
    return found


def _holds(difference: float, threshold: float) -> bool:
    # A threshold of zero is that of a strict fall (rules.py).
    return difference > 0 if threshold == 0 else difference >= threshold


def _checkpoints(observed: Sequence[Record], apart: str) -> list[Row]:
    found = []
    done = [row for row in observed if "difference" in row]
    for (edit, arm, size), rows in _grouped(done, "edit", "arm", "size").items():
        dots = [
            Dot(
                row["difference"] * row["predicted"],
                UNRESOLVED if not row["resolved"] else HOLDING if row["as_predicted"] else FALLING,
                f"{row['run']}: {row['before']:.6f} → {row['after']:.6f}" + ("" if row["resolved"] else ", unresolved"),
            )
            for row in rows
        ]
        found.append(Row(f"{edit}: {arm}, {size}", dots, 0.0, apart))
    return found


def _bounded(observed: Sequence[Record]) -> list[Row]:
    return [
        Row(
            f"{arm}, at most {threshold:g}",
            [
                Dot(
                    row["value"],
                    HOLDING if row["value"] <= threshold else FALLING,
                    f"seed {row['seed']}: {row['value']:.6f}",
                )
                for row in rows
            ],
            threshold,
        )
        for (arm, threshold), rows in _grouped(observed, "arm", "threshold").items()
    ]


def strips(plot: Plot) -> tuple[list[Strip], str]:
    """Return the rows as label and SVG, and the SVG of the axis below them."""
    values = [dot.value for row in plot.rows for dot in row.dots] + [row.threshold for row in plot.rows] + [0.0]
    low, high = min(values), max(values)
    width = (high - low) or 1.0

    def place(value: float) -> str:
        return f"{4 + 92 * (value - low) / width:.2f}%"

    found = [Strip(row.label, _strip(row, plot.holding, place), row.apart) for row in plot.rows]
    return found, _axis(low, high, [row.threshold for row in plot.rows], place)


def _strip(row: Row, holding: str, place: Any) -> str:
    at = place(row.threshold)
    start, end = (at, "100%") if holding == "right" else ("0%", at)
    span = f"{float(end[:-1]) - float(start[:-1]):.2f}%"
    parts = [f'<rect class="side" x="{start}" y="0" width="{span}" height="{_HEIGHT}"/>']
    parts.append(f'<line class="base" x1="0" x2="100%" y1="{_HEIGHT / 2:g}" y2="{_HEIGHT / 2:g}"/>')
    parts.append(f'<line class="threshold" x1="{at}" x2="{at}" y1="0" y2="{_HEIGHT}"/>')
    for number, dot in enumerate(row.dots):
        y = _HEIGHT / 2 + (-3, 3, 0, -5, 5)[number % 5]
        words = escape(dot.words)
        radius = 4.5 if dot.side == HOLDING else 4
        parts.append(
            f'<circle class="{dot.side}" cx="{place(dot.value)}" cy="{y:g}" r="{radius}"><title>{words}</title></circle>'
        )
    words = escape(f"{row.label}: {'; '.join(dot.words for dot in row.dots)}")
    return f'<svg class="strip" width="100%" height="{_HEIGHT}" role="img" aria-label="{words}">{"".join(parts)}</svg>'


def _axis(low: float, high: float, thresholds: Sequence[float], place: Any) -> str:
    """The ends of the scale, zero, and the threshold where all rows share it, as far as they do not meet."""
    shared = [thresholds[0]] if len(set(thresholds)) == 1 else []
    kept: list[float] = []
    for value in [*shared, 0.0, low, high]:
        if all(abs(float(place(value)[:-1]) - float(place(other)[:-1])) > 16 for other in kept):
            kept.append(value)
    parts = []
    for value in kept:
        x = float(place(value)[:-1])
        anchor = "start" if x < 12 else "end" if x > 88 else "middle"
        name = "threshold" if shared and value == shared[0] else "tick"
        parts.append(f'<text class="{name}" x="{x:.2f}%" y="13" text-anchor="{anchor}">{_number(value)}</text>')
    return f'<svg class="axis" width="100%" height="18" aria-hidden="true">{"".join(parts)}</svg>'


def _number(value: float) -> str:
    text = f"{value:.3g}" if value else "0"
    return text.replace("-", "−")
