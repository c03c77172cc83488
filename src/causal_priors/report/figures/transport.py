"""The transport plan of constant scores beside its exact profile."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.theme import COLOURS, INK, MUTED, Label, Layout, label_ends, panels
from causal_priors.theory.transport_prior import profile, solve

STRENGTHS = (0.25, 0.5, 0.75)
ROWS = (16, 128, 1024)
_T = np.linspace(0.005, 0.995, 120)
_KEY = (
    "Weight of key j in row i, times i, if content says nothing: softmax would be flat at one. The dashed curve is"
    " the exact limit f(t) = (ln 1/t)^(−strength) / Γ(1 − strength), the same at every length: near keys gain, but"
    " no window of fixed size keeps its share."
)


def draw(tables: Tables, layout: Layout) -> Figure:
    """One panel a strength, one line a row of the plan."""
    figure, places = panels(layout, len(STRENGTHS), 2.4, left=0.5, below=0.85, note=_KEY)
    for place, strength in zip(places, STRENGTHS, strict=True):
        rows = solve(max(ROWS), strength, ROWS).rows
        place.set(yscale="log", ylim=(0.08, 100), xlim=(0, 1.42), title=f"strength {strength:g}")
        place.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "¼", "½", "¾", "1"])
        place.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
        place.minorticks_off()
        labels = []
        for (i, row), colour in zip(rows.items(), COLOURS, strict=False):
            places_of_keys = np.arange(1, i + 1) / i
            curve = i * row
            kept = np.unique(np.searchsorted(places_of_keys, _T).clip(0, i - 1))
            kept = np.append(kept, i - 1)
            place.plot(places_of_keys[kept], curve[kept], color=colour, linewidth=1.1)
            labels.append(Label(float(curve[-1]), f"i = {i}", colour))
        place.plot(_T, [profile(float(t), strength) for t in _T], color=INK, linewidth=1.4, linestyle=(0, (4, 2)))
        place.axhline(1, xmax=1 / 1.42, color=MUTED, linewidth=0.7)
        label_ends(place, 1.0, [*labels, Label(profile(0.995, strength), "limit", INK), Label(1.0, "softmax", MUTED)])
        place.set_xlabel(f"place of the key, t = j / i\n{_excess(tables.theory, strength)}", loc="left", size=7.8)
    for number, place in enumerate(places):
        if number % layout.columns == 0:
            place.set_ylabel("i · P[i, j]")
        else:
            place.tick_params(labelleft=False)
    return figure


def _excess(theory: pd.DataFrame, strength: float) -> str:
    """How far above the limit the plan is at t = 1/2, from the table of theory."""
    rows = theory[(theory["result"] == "profile") & theory["quantity"].str.endswith(f"strength {strength:g}")]
    rows = rows.sort_values("n").iloc[[0, -1]] if len(rows) else rows
    parts = [f"{row['relative_error']:.1%} (i = {row['n']:.0f})" for _, row in rows.iterrows()]
    return f"over the limit at ½: {', '.join(parts)}" if parts else ""
