"""The margin curve: how much far mass grows with length, against how far exponents stay above one."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.families import look
from causal_priors.report.figures.theme import INK, MUTED, Layout, panels, spread
from causal_priors.theory.margin import TOLERANCES, far_mass_growth
from causal_priors.theory.window_mass import mean_far_mass

_KEY = (
    "Curve: growth of far mass from L to 8L that the prior alone gives, if every exponent is 1 + δ. Ring: the "
    "smallest δ that keeps it within the tolerance τ. Points: what trained arms show, one a seed, above the δ they"
    " may not go below; crosses: what the prior alone gives at their trained exponents (drawn just beside)."
)


def draw(tables: Tables, layout: Layout) -> Figure:
    """Growth against margin at this scale, with the three selected margins."""
    length = tables.scale.sizes["S"].train_length
    window, longest = length // 8, 8 * length
    figure, (place,) = panels(layout, 1, 3.7, left=0.6, note=f"{_KEY} {tables.note()}")
    most = 1.25 * max(tables.margins.values())
    deltas = np.linspace(0, most, 80)
    place.plot(deltas, [far_mass_growth(1 + delta, window, length, longest) for delta in deltas], color=INK)
    measured = growths(tables.lengths)
    for arm, tolerance in TOLERANCES.items():
        delta, looks = tables.margins[arm], look(arm)
        place.plot([0, delta], [tolerance, tolerance], color=looks.colour, linewidth=0.8, linestyle=(0, (2, 2)))
        place.plot([delta], [tolerance], "o", color=looks.colour, fillstyle="none", markersize=8)
        place.vlines(delta, 0, tolerance, color=looks.colour, linewidth=0.6)
        seen = measured[measured["arm"] == arm]["growth"]
        place.plot([delta] * len(seen), seen, "o", color=looks.colour, markersize=4.5)
        alone = _alone(tables.exponents, arm, length)
        place.plot([delta + 0.018 * most] * len(alone), alone, "x", color=looks.colour, markersize=5)
    if tables.comparable:
        for row in tables.published["margin"]:
            if row["far_mass_growth"] is not None:
                place.plot(
                    tables.margins[row["arm"]], row["far_mass_growth"], "D", color=MUTED, fillstyle="none", markersize=5
                )
                place.annotate(
                    "source",
                    (tables.margins[row["arm"]], row["far_mass_growth"]),
                    xytext=(6, -3),
                    textcoords="offset points",
                    size=7.5,
                    color=MUTED,
                )
    place.axhline(0, color=MUTED, linewidth=0.7)
    place.set(
        xlim=(0, most * (1.1 if layout.columns > 1 else 1.4)),
        title=f"Growth of far mass, {length} to {longest} tokens, window {window}",
        xlabel="margin δ: how far above one every exponent stays",
        ylabel="growth, share of attention",
    )
    _name(place, tables.margins)
    return figure


def _name(place: Axes, margins: Mapping[str, float]) -> None:
    """Two lines beside each ring, moved up or down where others stand. Limits of the axes must be final."""
    order = sorted(TOLERANCES, key=lambda arm: TOLERANCES[arm])
    figure = place.get_figure()
    assert figure is not None
    points = place.transData.transform([(margins[arm], TOLERANCES[arm]) for arm in order])[:, 1] * 72 / figure.dpi
    for arm, at, moved in zip(order, points, spread([float(at) for at in points], 23.0, -1e9, 1e9), strict=True):
        place.annotate(
            f"τ = {TOLERANCES[arm]:g} → δ = {margins[arm]:.3f}\n{arm}", (margins[arm], TOLERANCES[arm]),
            xytext=(9, 7 + moved - at), textcoords="offset points", size=8, color=look(arm).colour, va="bottom",
        )  # fmt: skip


def growths(lengths: pd.DataFrame) -> pd.DataFrame:
    """Measured growth of far mass from L to 8L: columns run, arm, seed, growth."""
    plain = lengths[lengths["variant"] == "plain"]
    wide = plain.assign(multiple=plain["length"] // plain["train_length"]).pivot_table(
        index=["run", "arm", "seed"], columns="multiple", values="far_mass_eighth"
    )
    wide = wide.reindex(columns=[1, 8])
    return (wide[8] - wide[1]).rename("growth").dropna().reset_index()


def _alone(exponents: pd.DataFrame, arm: str, length: int) -> list[float]:
    found = []
    for _, rows in exponents[exponents["arm"] == arm].groupby("seed"):
        values = rows["value"].tolist()
        found.append(mean_far_mass(values, 8 * length, length // 8) - mean_far_mass(values, length, length // 8))
    return found
