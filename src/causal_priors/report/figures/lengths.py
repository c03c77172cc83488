"""Small multiples of arms: one panel a family, the mean over seeds as a line, every seed as a point.

All other arms of the size stand behind each panel in grey, and rope is in each as the line to compare with.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.families import BASELINE, TOGETHER, families, look
from causal_priors.report.figures.theme import (
    CONTEXT,
    INK,
    MARKERS,
    MUTED,
    Label,
    Layout,
    label_ends,
    name_once,
    one_line,
    panels,
)

# Columns that every frame here has: size, arm, train_length, variant, seed, x, y.
KEY = "Line: mean over seeds. Point: one seed. Dashed: the same checkpoints with YaRN. Grey: the other arms of size S."
_LINE = ["arm", "train_length", "variant"]


@dataclass(frozen=True)
class Axis:
    """What the horizontal axis says: its label and the ticks with their names. Positions are on a log scale."""

    label: str
    ticks: Sequence[float]
    names: Sequence[str]


@dataclass(frozen=True)
class _Line:
    name: str
    colour: str
    marker: str
    dashed: bool
    rows: pd.DataFrame


@dataclass(frozen=True)
class _Panel:
    title: str
    lines: Sequence[_Line]
    behind: Sequence[pd.DataFrame]
    baseline: pd.DataFrame | None


def draw_lines(
    frame: pd.DataFrame, tables: Tables, layout: Layout, axis: Axis, ylabel: str, number: Callable[[float], str]
) -> Figure:
    """Draw `frame`: a point per seed at (x, y), a line per arm, variant and training length.

    number: writes a value beside the name of its line.
    """
    frame = frame[np.isfinite(frame["y"].astype(float))]
    found = list(_panels(frame, tables))
    figure, places = panels(layout, len(found), 2.3, left=0.55, below=0.5, note=f"{KEY} {tables.note()}")
    if not found:
        return figure
    low, high = frame["y"].min(), frame["y"].max()
    margin = 0.05 * (high - low) or 0.05
    for place, panel in zip(places, found, strict=True):
        first, last = min(axis.ticks), max(axis.ticks)
        # Right of the last tick is the room for names.
        place.set(xscale="log", xlim=(first * 0.88, last * (last / first) ** 0.98), ylim=(low - margin, high + margin))
        place.set_xticks(axis.ticks, axis.names)
        place.minorticks_off()
        place.set_title(panel.title)
        _draw(place, panel, last, number)
    name_once(places, layout.columns, axis.label, ylabel)
    return figure


def _panels(frame: pd.DataFrame, tables: Tables) -> Iterator[_Panel]:
    bases = {name: size.train_length for name, size in tables.scale.sizes.items()}
    screening = frame[(frame["size"] == "S") & (frame["train_length"] == bases["S"])]
    means = {arm: _mean(rows) for arm, rows in screening[screening["variant"] == "plain"].groupby("arm")}
    for family in families(set(screening["arm"])):
        behind = [mean for arm, mean in means.items() if arm not in family.arms and arm != BASELINE]
        baseline = means.get(BASELINE) if BASELINE not in family.arms else None
        lines = list(_lines(screening[screening["arm"].isin(family.arms)], family.arms))
        yield _Panel(f"{family.title} (size S)", lines, behind, baseline)
    larger = frame[frame["size"] == "C"]
    at_base = larger[larger["train_length"] == bases["C"]]
    order = (*TOGETHER, *sorted(set(at_base["arm"]) - set(TOGETHER)))
    if len(at_base):
        yield _Panel(f"Size C, L = {bases['C']}", list(_lines(at_base, order)), (), None)
    if larger["train_length"].nunique() > 1:
        several = larger.groupby("arm")["train_length"].transform("nunique") > 1
        chosen = larger[several & (larger["variant"] == "plain")]
        yield _Panel("Size C, three training lengths", list(_lines(chosen, order, lengths=True)), (), None)


def _lines(frame: pd.DataFrame, order: Sequence[str], lengths: bool = False) -> Iterator[_Line]:
    for number, arm in enumerate(order):
        own = frame[frame["arm"] == arm]
        for place, ((_, length, variant), rows) in enumerate(own.groupby(_LINE)):
            looks = look(str(arm), number)
            name = str(arm) if variant == "plain" else f"{arm} + {variant}"
            marker = MARKERS[place % len(MARKERS)] if lengths else looks.marker
            yield _Line(f"{name}, L = {length}" if lengths else name, looks.colour, marker, variant != "plain", rows)


def _mean(rows: pd.DataFrame) -> pd.DataFrame:
    return rows.groupby("x")["y"].mean(skipna=False).reset_index()


def _draw(place: Axes, panel: _Panel, last: float, number: Callable[[float], str]) -> None:
    place.plot(*one_line((mean["x"], mean["y"]) for mean in panel.behind), color=CONTEXT, linewidth=0.7, zorder=1)
    labels = []
    if panel.baseline is not None:
        place.plot(panel.baseline["x"], panel.baseline["y"], color=MUTED, linewidth=1.2, zorder=2)
        labels.append(_ending(panel.baseline, last, BASELINE, INK, number))
    for line in panel.lines:
        mean = _mean(line.rows)
        place.plot(mean["x"], mean["y"], color=line.colour, linestyle=(0, (4, 2)) if line.dashed else "solid", zorder=3)
        place.plot(
            line.rows["x"], line.rows["y"], line.marker, color=line.colour, markersize=2.8, markeredgewidth=0, zorder=4
        )
        labels.append(_ending(mean, last, line.name, line.colour, number))
    label_ends(place, last, [label for label in labels if label is not None])


def _ending(mean: pd.DataFrame, last: float, name: str, colour: str, number: Callable[[float], str]) -> Label | None:
    ends = mean.loc[mean["x"] == last, "y"]
    return Label(float(ends.iloc[0]), f"{name} {number(float(ends.iloc[0]))}", colour) if len(ends) else None
