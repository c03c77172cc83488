"""How exponents moved during training, head by head."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.census import groups
from causal_priors.report.figures.colours import LIGHT
from causal_priors.report.figures.theme import INK, Layout, one_line, panels
from causal_priors.report.tables import EXPLORATORY

_HEAD = ["run", "layer", "head"]


def draw(tables: Tables, layout: Layout) -> Figure:
    """One panel an arm whose exponents are trained, one line a head of each seed."""
    exponents = tables.training[tables.training["quantity"] == "exponent"]
    found = [(key, rows) for key, rows in groups(exponents) if _moved(rows)]
    note = "Across: training steps. One line a head, of every seed. Solid: it ends above one; dashed: at or below one."
    columns = 4 if layout.columns > 1 else 2
    figure, places = panels(
        layout, len(found), 1.35, columns=columns, left=0.45, gap=0.25, below=0.5, note=f"{note} {tables.note()}"
    )
    top = max((rows["value"].max() for _, rows in found), default=1.0)
    for number, (place, ((size, arm, _), rows)) in enumerate(zip(places, found, strict=True)):
        own = "*" if rows["status"].iloc[0] == EXPLORATORY else ""
        place.set(ylim=(0, top * 1.06), title=f"{arm}{own}, {size}")
        place.axhline(1, color=INK, linewidth=0.9)
        _heads(place, rows)
        place.set_xlabel(_distance(rows), loc="left", size=7.5)
        if number % columns == 0:
            place.set_ylabel("exponent α")
        else:
            place.tick_params(labelleft=False)
    return figure


def _moved(rows: pd.DataFrame) -> bool:
    return bool((rows.groupby(_HEAD)["value"].nunique() > 1).any())


def _heads(place: Axes, rows: pd.DataFrame) -> None:
    curves: dict[bool, list[tuple[pd.Series, pd.Series]]] = {True: [], False: []}
    for _, head in rows.sort_values("step").groupby(_HEAD):
        curves[bool(head["value"].iloc[-1] > 1)].append((head["step"], head["value"]))
    for above, lines in curves.items():
        colour, dashes = (LIGHT["blue"], "solid") if above else (LIGHT["red"], (0, (3, 1.5)))
        place.plot(*one_line(lines), linewidth=0.8, color=colour, linestyle=dashes)


def _distance(rows: pd.DataFrame) -> str:
    ends = rows["step"] == rows["step"].max(), rows["step"] == rows["step"].min()
    last, first = ((rows.loc[chosen, "value"] - 1).abs().mean() for chosen in ends)
    return f"mean |α − 1|: {first:.3f} → {last:.3f}"
