"""Style, sizes and places that all figures share.

A figure is drawn twice: wide, and narrow for a phone, with the same text size on both.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike, NDArray

from causal_priors.report.figures.colours import LIGHT, PALETTE

STYLE = Path(__file__).parents[1] / "style.mplstyle"

PAPER, INK, MUTED, CONTEXT, GRID = (LIGHT[name] for name in ("paper", "ink", "muted", "context", "grid"))
COLOURS = tuple(LIGHT[name] for name in PALETTE)
MARKERS = ("o", "s", "^", "D", "v", "P")
_POINTS = 72.0


@dataclass(frozen=True)
class Layout:
    """Where a figure is read: width in inches, and how many panels stand side by side at most."""

    name: str
    width: float
    columns: int


WIDE, NARROW = Layout("wide", 10.4, 3), Layout("narrow", 4.1, 1)
LAYOUTS = (WIDE, NARROW)


def style() -> AbstractContextManager[Any]:
    """Settings of the style file over matplotlib's own, whatever a user's matplotlibrc says."""
    return mpl.rc_context(fname=str(STYLE))


def panels(
    layout: Layout,
    count: int,
    height: float,
    *,
    columns: int | None = None,
    left: float = 0.5,
    gap: float = 0.3,
    below: float = 0.62,
    note: str = "",
) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` panels of `height` inches in reading order, placed by hand: no layout engine runs.

    left, gap, below: inches for what stands beside the first, between and under panels. note: a line at the very bottom.
    """
    across = max(1, min(columns or layout.columns, count))
    down = -(-count // across)
    top, foot = 0.32, (0.12 + 0.16 * len(lines)) if (lines := _wrapped(note, layout)) else 0.06
    total = top + down * (height + below) + (down - 1) * 0.2 + foot
    width = (layout.width - left - 0.12 - (across - 1) * gap) / across
    figure = Figure(figsize=(layout.width, total))
    found = []
    for number in range(count):
        row, column = divmod(number, across)
        x = left + column * (width + gap)
        y = total - top - height - row * (height + below + 0.2)
        found.append(figure.add_axes((x / layout.width, y / total, width / layout.width, height / total)))
    if lines:
        figure.text(0.01, 0.06 / total, "\n".join(lines), size=7.5, color=MUTED, va="bottom", linespacing=1.3)
    return figure, found


def name_once(places: Sequence[Axes], columns: int, xlabel: str, ylabel: str) -> None:
    """Name axes that all panels share: y on the first of each row, x under the last of each column."""
    for number, place in enumerate(places):
        if number % columns == 0:
            place.set_ylabel(ylabel)
        else:
            place.tick_params(labelleft=False)
        if number >= len(places) - columns:
            place.set_xlabel(xlabel, loc="left")


def _wrapped(text: str, layout: Layout) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + len(word) < layout.width * 15.5:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


@dataclass(frozen=True)
class Label:
    """Words beside a line's end: y in data coordinates."""

    y: float
    text: str
    colour: str


def label_ends(axes: Axes, x: float, labels: Sequence[Label], size: float = 7.8) -> None:
    """Write `labels` to the right of x, each as near to its y as the others let it be, with a hairline where it moved.

    Axis limits must be final.
    """
    if not labels:
        return
    figure = axes.get_figure()
    assert isinstance(figure, Figure)
    box = axes.get_position()
    width, height = box.width * figure.get_figwidth() * _POINTS, box.height * figure.get_figheight() * _POINTS
    order = sorted(labels, key=lambda label: (label.y, label.text))
    ends = axes.transAxes.inverted().transform(axes.transData.transform([(x, label.y) for label in order]))
    wanted = [float(y) * height for _, y in ends]
    gap = size * 1.18
    places = spread(wanted, gap, 5.0, height - 4.0)
    for label, (start, _), at, place, moved in zip(
        order, ends, wanted, places, _set_in(wanted, places, gap), strict=True
    ):
        if moved:
            axes.plot(
                [start + 3 / width, start + 12 / width],
                [at / height, place / height],
                color=label.colour,
                linewidth=0.5,
                transform=axes.transAxes,
                clip_on=False,
            )
        axes.text(
            start + (13 if moved else 5) / width,
            place / height,
            label.text,
            transform=axes.transAxes,
            va="center_baseline",
            size=size,
            color=label.colour,
        )


def _set_in(wanted: Sequence[float], places: Sequence[float], gap: float) -> list[bool]:
    """Say of each label whether it needs a hairline: it moved, or touches one that did, whose hairline would cross it."""
    found: list[bool] = []
    start = 0
    for number in range(len(places)):
        if number + 1 == len(places) or places[number + 1] - places[number] > 1.05 * gap:
            moved = any(abs(places[one] - wanted[one]) > 1.0 for one in range(start, number + 1))
            found += [moved] * (number + 1 - start)
            start = number + 1
    return found


def spread(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending `places` moved as little as possible (least squares) so that neighbours are `gap` apart.

    The result lies within low..high if there is room for that, else it keeps the gap and is centred there.
    """
    if not places:
        return []
    # Subtracting the gaps turns "gap apart" into "not falling", which pooling neighbours solves.
    pools: list[list[float]] = []
    for number, place in enumerate(places):
        pools.append([place - number * gap, 1.0])
        while len(pools) > 1 and pools[-2][0] / pools[-2][1] > pools[-1][0] / pools[-1][1]:
            total, weight = pools.pop()
            pools[-1] = [pools[-1][0] + total, pools[-1][1] + weight]
    flat = [total / weight for total, weight in pools for _ in range(round(weight))]
    top = high - (len(places) - 1) * gap
    if top < low:
        middle = (low + top) / 2
        flat = [middle] * len(flat)
    else:
        flat = [min(max(value, low), top) for value in flat]
    return [value + number * gap for number, value in enumerate(flat)]


def one_line(curves: Iterable[tuple[ArrayLike, ArrayLike]]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Join curves (x, y) into one with gaps between them: a hundredth of the SVG elements, and of the time."""
    gap = np.array([np.nan])
    parts = [np.asarray(part, dtype=np.float64) for curve in curves for part in curve]
    joined = [np.concatenate([piece for part in parts[axis::2] for piece in (part, gap)] or [gap]) for axis in (0, 1)]
    return joined[0], joined[1]


def signed(value: float, digits: int = 3) -> str:
    """A number with its sign and a true minus, as labels write it; in powers of ten where digits would hide it."""
    text = f"{value:+.{digits}f}" if value == 0 or abs(value) >= 10.0**-digits / 2 else f"{value:+.0e}"
    return text.replace("-", "−")


def power_of_ten(value: float) -> str:
    """10³ for 1000, as an axis writes it."""
    exponent = round(len(str(int(value))) - 1)
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] for digit in str(exponent))
