"""Window mass of priors up to a million tokens, with the exponents that training found."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from causal_priors.arms import ARMS, DISTANCE
from causal_priors.report.data import RUN, Tables
from causal_priors.report.figures.colours import LIGHT
from causal_priors.report.figures.families import FAMILIES, look
from causal_priors.report.figures.theme import (
    CONTEXT,
    INK,
    MUTED,
    Label,
    Layout,
    label_ends,
    one_line,
    panels,
    power_of_ten,
)
from causal_priors.report.prior_mass import edited_mass, head_mass
from causal_priors.theory.window_mass import window_mass

LONGEST = 10**6
_POINTS = 60
_REFERENCES = (0.5, 1.0, 1.1, 1.5, 2.0)
_KEY = (
    "Share of one query's weight on its w = L/8 nearest keys if content says nothing. Solid: exponents above one, "
    "or a linear prior, so a bounded share escapes however long the text; dashed: at or below one, so in the end "
    "all of it escapes. First panel: black, exponents to compare with; blue and red, each trained head of log, "
    "log-norope and log-logn, above and below one."
)
Floats = NDArray[np.float64]


def draw(tables: Tables, layout: Layout) -> Figure:
    """Four panels: single heads over reference exponents, arms of each size, and what cap and repair do."""
    length = tables.scale.sizes["S"].train_length
    figure, places = panels(
        layout,
        4,
        2.3,
        columns=2 if layout.columns > 1 else 1,
        left=0.5,
        gap=0.35,
        below=0.58,
        note=f"{_KEY} {tables.note()}",
    )
    heads = parameters(tables.training)
    for place, title in zip(
        places,
        (
            "Trained heads of power laws",
            "Size S, mean over heads",
            "Size C, mean over heads",
            "Under cap and repair (log, size S)",
        ),
        strict=True,
    ):
        size = tables.scale.sizes["C"] if title.startswith("Size C") else tables.scale.sizes["S"]
        n = np.geomspace(size.train_length // 8, LONGEST, _POINTS).round()
        _frame(place, title, size.train_length)
        if title.startswith("Trained"):
            _single(place, heads[heads["arm"].isin(_FREE)], n, size.train_length // 8)
        elif title.startswith("Size"):
            _arms(place, heads[heads["size"] == title[5]], n, size.train_length)
        else:
            _edits(place, heads[(heads["arm"] == "log") & (heads["size"] == "S")], n, length)
    for number, place in enumerate(places):
        if layout.columns == 1 or number % 2 == 0:
            place.set_ylabel("share inside the window")
        else:
            place.tick_params(labelleft=False)
    return figure


_FREE = ("log", "log-norope", "log-logn")


def parameters(training: pd.DataFrame) -> pd.DataFrame:
    """One row a trained head of the registered arms whose prior is a function of distance alone.

    Columns: those of `RUN`, layer, head, exponent, rate, slope; missing where the prior has none.
    """
    distance = {
        key
        for key, arm in ARMS.items()
        if arm.log_prior is not None and arm.log_prior.module == DISTANCE and arm.transport is None
    }
    rows = training[training["arm"].isin(distance)]
    last = rows[rows["step"] == rows.groupby("run")["step"].transform("max")]
    wide = last.pivot_table(index=[*RUN, "layer", "head"], columns="quantity", values="value").reset_index()
    return wide.reindex(columns=[*RUN, "layer", "head", "exponent", "rate", "slope"])


def masses(heads: pd.DataFrame, window: int, n: Floats) -> Iterator[Floats]:
    """Window mass over n of each head."""
    for head in heads[["exponent", "rate", "slope"]].to_dict("records"):
        yield head_mass({str(name): value for name, value in head.items() if not pd.isna(value)}, window, n)


def _frame(place: Axes, title: str, length: int) -> None:
    place.set(
        xscale="log", xlim=(length / 8, LONGEST * (LONGEST / length) ** 0.66), ylim=(0, 1.04), xlabel="keys in view, n"
    )
    place.set_title(title, pad=13)
    ticks = [tick for tick in (10, 100, 1000, 10**4, 10**5, 10**6) if tick >= length / 8]
    place.set_xticks(ticks, [power_of_ten(tick) for tick in ticks])
    place.minorticks_off()
    for multiple, name in ((1, "L"), (8, "8L")):
        place.axvline(multiple * length, color=CONTEXT, linewidth=0.7, zorder=0)
        place.text(multiple * length, 1.045, name, ha="center", va="bottom", size=7, color=MUTED)


def _single(place: Axes, heads: pd.DataFrame, n: Floats, window: int) -> None:
    labels = []
    for exponent in _REFERENCES:
        curve = window_mass(window, n, exponent)
        place.plot(n, curve, color=INK, linewidth=1, linestyle="solid" if exponent > 1 else (0, (4, 2)))
        labels.append(Label(float(curve[-1]), f"α = {exponent:g}: {curve[-1]:.2f}", INK))
    for above in (True, False):
        chosen = heads[(heads["exponent"] > 1) == above]
        curves = [(n, curve) for curve in masses(chosen, window, n)]
        place.plot(*one_line(curves), color=LIGHT["blue" if above else "red"], linewidth=0.5, zorder=1)
    label_ends(place, LONGEST, labels)


def _arms(place: Axes, heads: pd.DataFrame, n: Floats, length: int) -> None:
    labels = []
    rows = heads[heads["train_length"] == length]
    order = [arm for family in FAMILIES for arm in family.arms if arm in set(rows["arm"])]
    for arm in order:
        own = rows[rows["arm"] == arm]
        curve = np.mean(list(masses(own, length // 8, n)), axis=0)
        # KERPLE's power is its exponent here; a head at or below one makes the mean dilute.
        bounded = bool((own["exponent"].isna() | (own["exponent"] > 1)).all())
        colour = look(arm).colour
        place.plot(n, curve, color=colour, linestyle="solid" if bounded else (0, (4, 2)), linewidth=1.2)
        labels.append(Label(float(curve[-1]), f"{arm} {curve[-1]:.2f}", colour))
    label_ends(place, LONGEST, labels)


def _edits(place: Axes, heads: pd.DataFrame, n: Floats, length: int) -> None:
    if heads.empty:
        return
    exponents = heads["exponent"].tolist()
    curves: Sequence[tuple[str, str, Callable[[float], Floats]]] = (
        ("as trained", INK, lambda exponent: window_mass(length // 8, n, exponent)),
        ("cap", LIGHT["red"], lambda exponent: edited_mass("cap", exponent, length, length // 8, n)),
        ("repair", LIGHT["blue"], lambda exponent: edited_mass("repair", exponent, length, length // 8, n)),
    )
    labels = []
    for name, colour, of in curves:
        curve = np.mean([of(exponent) for exponent in exponents], axis=0)
        place.plot(n, curve, color=colour, linestyle="solid" if name == "repair" else (0, (4, 2)))
        labels.append(Label(float(curve[-1]), f"{name} {curve[-1]:.2f}", colour))
    label_ends(place, LONGEST, labels)
