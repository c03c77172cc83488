"""What cap and repair do to each trained checkpoint: arrows from before to after."""

from collections.abc import Iterator

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_priors.prereg.terms import REGISTERED
from causal_priors.report.data import PREDICTED, Tables
from causal_priors.report.figures.colours import LIGHT
from causal_priors.report.figures.theme import INK, MUTED, Layout, panels, signed

_ROW = 0.155
_SENSES = {"cap": "cap: the prior stops falling beyond L", "repair": "repair: the prior falls faster beyond L"}
_KEY = (
    "Each row is one checkpoint at windows of 8L. Blue: it moved as predicted (cap up, repair down). Red: the "
    "other way. Grey: by less than the registered resolution. In italics: exploratory, in no verdict."
)


def draw(tables: Tables, layout: Layout) -> Figure:
    """Change of the loss beyond L (left, or above), and far mass before and after (right, or below)."""
    rows = list(_rows(tables.swaps))
    lines = rows[-1][0] + 1 if rows else 1
    wide = layout.columns > 1
    figure, places = panels(
        layout, 2, lines * _ROW, columns=2 if wide else 1, left=1.2, gap=0.55, note=f"{_KEY} {tables.note()}"
    )
    for place in places:
        place.set(ylim=(lines - 0.3, -0.9), yticks=[])
        place.grid(visible=False)
        place.spines["left"].set_visible(False)
    losses, masses = places
    losses.set(title="Change of the loss beyond L", xlabel="nats per token")
    for edit in tables.swaps["edit"].unique():
        block = [at for at, row in rows if row["edit"] == edit]
        losses.plot([0, 0], [min(block) - 0.6, max(block) + 0.6], color=MUTED, linewidth=0.8)
    masses.set(title="Far mass, before → after", xlabel="share of attention")
    for at, row in rows:
        for place, quantity, start, end, digits in (
            (losses, "loss", 0.0, row["loss_after"] - row["loss_before"], 4),
            (masses, "far", row["far_before"], row["far_after"], 3),
        ):
            change = row[f"{quantity}_after"] - row[f"{quantity}_before"]
            resolved = abs(change) >= tables.resolutions[quantity].get(row["dtype"], 0.0)
            colour = _colour(change * PREDICTED[row["edit"]]) if resolved else MUTED
            _arrow(place, at, start, end, colour)
            place.text(
                1.0, at, signed(change, digits), transform=place.get_yaxis_transform(), ha="right", va="center",
                size=7, color=INK if colour == LIGHT["blue"] else colour,
            )  # fmt: skip
    for place in places:
        low, high = place.get_xlim()
        place.set_xlim(low, high + 0.22 * (high - low))
    for place in places if not wide else places[:1]:
        _names(place, rows)
    return figure


def _rows(swaps: pd.DataFrame) -> Iterator[tuple[int, pd.Series]]:
    """Rows with their lines from the top: a gap between arms, a wider one with a heading between edits."""
    at, previous = -1, ("", "", "")
    for _, row in swaps.sort_values(
        ["edit", "size", "status", "arm", "seed"], ascending=[True, False, False, True, True]
    ).iterrows():
        group = (row["edit"], row["size"], row["arm"])
        at += 3 if row["edit"] != previous[0] and previous[0] else 2 if row["edit"] != previous[0] else 1
        previous = group
        yield at, row


def _colour(moved: float) -> str:
    return LIGHT["blue"] if moved > 0 else LIGHT["red"]


def _arrow(place: Axes, at: int, before: float, after: float, colour: str) -> None:
    place.plot([before], [at], "o", color=colour, markersize=2.4, fillstyle="none", markeredgewidth=0.7)
    place.plot([before, after], [at, at], color=colour, linewidth=1.4)
    place.plot([after], [at], ">" if after >= before else "<", color=colour, markersize=3.6, markeredgewidth=0)


def _names(place: Axes, rows: list[tuple[int, pd.Series]]) -> None:
    transform = place.get_yaxis_transform()
    edits = set()
    for at, row in rows:
        if row["edit"] not in edits:
            edits.add(row["edit"])
            place.text(
                -0.01,
                at - 1.15,
                _SENSES[row["edit"]],
                transform=transform,
                ha="left",
                va="center",
                size=8,
                weight="bold",
            )
        style = "normal" if row["status"] == REGISTERED else "italic"
        name = f"{row['arm']}  {row['size']}  s{row['seed']}"
        place.text(-0.02, at, name, transform=transform, ha="right", va="center", size=7.2, style=style)
