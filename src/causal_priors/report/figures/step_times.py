"""What a training step of each arm takes, beside rope's, and what the source reports of its own."""

from collections.abc import Iterator, Mapping
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.colours import LIGHT
from causal_priors.report.figures.families import BASELINE
from causal_priors.report.figures.theme import INK, MUTED, Layout, panels
from causal_priors.report.tables import EXPLORATORY

_ROW = 0.2
_KEY = (
    "One point a seed; the number is their mean. Diamond: the source's, on its own hardware, at its own sizes. "
    "This is the one figure that differs from run to run: times are no part of any result."
)


def draw(tables: Tables, layout: Layout) -> Figure:
    """One row an arm of size S, slowest at the bottom."""
    ours, theirs = ratios(tables), dict(published_ratios(tables.published))
    order = ours.groupby("arm")["ratio"].mean().sort_values(kind="stable").index.tolist()
    unknown = [name for name in theirs if name not in order]
    figure, (place,) = panels(
        layout,
        1,
        max(1, len(order) + len(unknown)) * _ROW + 0.25,
        left=1.55 if layout.columns > 1 else 1.35,
        note=f"{_KEY} {tables.note()}",
    )
    place.set(
        xscale="log", ylim=(len(order) + len(unknown) - 0.4, -0.7), yticks=[], title="Step time over rope's (size S)"
    )
    place.grid(visible=True, axis="x")
    place.grid(visible=False, axis="y")
    place.spines["left"].set_visible(False)
    place.axvline(1, color=INK, linewidth=0.9)
    for at, arm in enumerate([*order, *unknown]):
        own = ours[ours["arm"] == arm]
        place.plot(own["ratio"], [at] * len(own), "o", color=LIGHT["blue"], markersize=3.6)
        stated = theirs.get(arm, [])
        place.plot(stated, [at] * len(stated), "D", color=LIGHT["red"], fillstyle="none", markersize=4.6)
        exploratory = len(own) and own["status"].iloc[0] == EXPLORATORY
        text = f"{arm} (exploratory)" if exploratory else arm
        place.text(
            -0.012,
            at,
            text,
            transform=place.get_yaxis_transform(),
            ha="right",
            va="center",
            size=8,
            color=INK if len(own) else MUTED,
        )
        words = f"{own['ratio'].mean():.2f}×" if len(own) else ""
        said = ", ".join(f"{ratio:.2f}×" for ratio in stated)
        place.text(
            1.0,
            at,
            f"{words}  {f'◇ {said}' if said else ''}".strip(),
            transform=place.get_yaxis_transform(),
            ha="right",
            va="center",
            size=7.5,
        )
    ticks = [0.5, 1, 2, 4, 8, 16, 32, 64]
    low, high = place.get_xlim()
    place.set_xticks(
        [tick for tick in ticks if low <= tick <= high], [f"{tick:g}×" for tick in ticks if low <= tick <= high]
    )
    place.minorticks_off()
    place.set_xlim(low, high * (high / low) ** (0.25 if layout.columns > 1 else 0.55))
    return figure


def ratios(tables: Tables) -> pd.DataFrame:
    """Step time over rope's mean at size S: columns arm, status, seed, ratio. Empty without rope."""
    times = tables.step_times
    own = times[(times["size"] == "S") & (times["train_length"] == tables.scale.sizes["S"].train_length)]
    base = own.loc[own["arm"] == BASELINE, "seconds"].mean()
    frame = own[["arm", "status", "seed"]].assign(ratio=own["seconds"].astype(float) / base)
    return frame.dropna()


def published_ratios(published: Mapping[str, Any]) -> Iterator[tuple[str, list[float]]]:
    """(arm, the source's ratios to its own baseline), an arm of each of its tables; its own name where ours is unknown."""
    found: dict[str, list[float]] = {}
    for part, key in (("step_time_0001", "seconds_per_step"), ("step_time_0002", "milliseconds_per_step")):
        base, *others = published[part]
        for row in others:
            found.setdefault(row["arm"] or f"source: {row['source_name']}", []).append(row[key] / base[key])
    yield from found.items()
