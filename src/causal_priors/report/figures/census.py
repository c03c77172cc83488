"""Where trained exponents ended, head by head, with the boundary at one."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.colours import LIGHT
from causal_priors.report.figures.families import FAMILIES
from causal_priors.report.figures.theme import INK, MUTED, Layout, panels
from causal_priors.report.tables import EXPLORATORY

_ROW = 0.34
_KEY = (
    "One lane a seed, one point a head. Filled: above one, so far mass stays bounded at any length. Open: at or "
    "below one."
)


def groups(frame: pd.DataFrame) -> list[tuple[tuple[str, str, int], pd.DataFrame]]:
    """Rows by (size, arm, training length), in the order of the families; arms of one's own last."""
    order = [arm for family in FAMILIES for arm in family.arms]

    def place(key: tuple[str, str, int]) -> tuple[bool, int, str, int]:
        size, arm, length = key
        return size == "C", order.index(arm) if arm in order else len(order), arm, length

    found: dict[tuple[str, str, int], pd.DataFrame] = {}
    for size, arm, length in frame[["size", "arm", "train_length"]].drop_duplicates().itertuples(index=False):
        chosen = (frame["size"] == size) & (frame["arm"] == arm) & (frame["train_length"] == length)
        found[str(size), str(arm), int(length)] = frame[chosen]
    return [(key, found[key]) for key in sorted(found, key=place)]


def draw(tables: Tables, layout: Layout) -> Figure:
    """One row an arm, one lane a seed, one point a head."""
    found = groups(tables.exponents)
    figure, (place,) = panels(
        layout,
        1,
        max(1, len(found)) * _ROW + 0.3,
        left=1.4 if layout.columns > 1 else 1.2,
        note=f"{_KEY} {tables.note()}",
    )
    place.set(
        ylim=(len(found) - 0.4, -0.95), yticks=[], xlabel="exponent α of the head's prior", title="Trained exponents"
    )
    place.grid(visible=True, axis="x")
    place.grid(visible=False, axis="y")
    place.spines["left"].set_visible(False)
    place.axvline(1, color=INK, linewidth=1)
    for word, side, shift in (("diluted", "right", -5), ("bounded", "left", 5)):
        place.annotate(
            word, (1, -0.62), xytext=(shift, 0), textcoords="offset points",
            ha=side, va="center", size=7.8, color=MUTED,
        )  # fmt: skip
    published = {row["arm"]: row["share_of_heads_above_one"] for row in tables.published["screening"]}
    for at, ((size, arm, _), rows) in enumerate(found):
        seeds = sorted(rows["seed"].unique())
        lane = {seed: at + (number - (len(seeds) - 1) / 2) * 0.62 / len(seeds) for number, seed in enumerate(seeds)}
        _heads(place, rows, lane)
        share = (rows["value"] > 1).mean()
        words = f"{share:.0%} above one"
        stated = published.get(arm)
        if tables.comparable and size == "S" and stated is not None:
            words += f" (source {stated:.0%})" if layout.columns > 1 else f"\n(source {stated:.0%})"
        place.text(1.0, at, words, transform=place.get_yaxis_transform(), ha="right", va="center", size=7.8)
        name = f"{arm}, {size}" + ("\n(exploratory)" if rows["status"].iloc[0] == EXPLORATORY else "")
        place.text(-0.015, at, name, transform=place.get_yaxis_transform(), ha="right", va="center", size=8)
    _, high = place.get_xlim()
    place.set_xlim(0, high + (0.32 if layout.columns > 1 else 0.6) * high)
    place.set_xticks([tick for tick in place.get_xticks() if tick <= high])
    return figure


def _heads(place: Axes, rows: pd.DataFrame, lane: dict[int, float]) -> None:
    for above, chosen in rows.groupby(rows["value"] > 1):
        colour = LIGHT["blue"] if above else LIGHT["red"]
        place.plot(
            chosen["value"], chosen["seed"].map(lane), "o", color=colour, markersize=3.4,
            fillstyle="full" if above else "none", markeredgewidth=0.8,
        )  # fmt: skip
