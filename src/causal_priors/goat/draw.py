"""Figures of experiment 0006 from its tables, as SVG in the study's one style."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from causal_priors.goat import LONGER, LONGER_TIMES, MIXTURE, RETRIEVAL, TWO_BACK
from causal_priors.goat.design import GUESS, LEARNT, Design
from causal_priors.goat.sink import sensitivity
from causal_priors.report.figures.save import write_figure
from causal_priors.report.figures.theme import COLOURS, CONTEXT, INK, MUTED, WIDE, Label, label_ends, panels, style


def draw_stage(tables: Mapping[str, pd.DataFrame], design: Design, out: Path) -> None:
    """Draw every figure into the folder `out`; one without data is drawn empty."""
    drawings = {
        MIXTURE: mixture(tables[MIXTURE], design),
        "prior": prior(tables["prior"], MIXTURE),
        f"prior-{TWO_BACK}": prior(tables["prior"], TWO_BACK),
        RETRIEVAL: retrieval({"": tables[RETRIEVAL]}, design.arms),
        LONGER: retrieval(
            {"": tables[RETRIEVAL], f" x{LONGER_TIMES}": tables[LONGER]}, list(tables[LONGER]["arm"].unique())
        ),
        "reach": reach(tables["reach"]),
        "sinks": sinks(tables["sinks"], design),
        "margin": margin(tables["margin"], tables["sinks"]),
    }
    for name, figure in drawings.items():
        with style():
            write_figure(figure, out / f"{name}.svg", raster=False)


def mixture(rows: pd.DataFrame, design: Design) -> Figure:
    """Share of the way to the Bayes optimum that each arm closes, by window length."""
    lengths = sorted(rows["length"].unique())
    note = (
        "0: a uniform guess; 1: the best predictor there is. Grey lines: the best that knows only the previous token "
        "(dashed) or only the first (dotted); here they coincide. Losses are exact expectations given each context."
    )
    with style():
        figure, places = panels(WIDE, max(1, len(lengths)), 2.4, left=0.9, gap=0.9, note=note)
        for place, length in zip(places, lengths, strict=False):
            part = rows[rows["length"] == length].set_index("arm").reindex(design.arms[::-1])
            span = part["uniform"] - part["optimum"]
            for key, dashes in (("previous_only", "--"), ("first_only", ":")):
                at = float(((part["uniform"] - part[key]) / span).mean())
                place.axvline(at, color=MUTED, linestyle=dashes, linewidth=0.8)
            place.plot(part["share"], range(len(part)), "o", color=COLOURS[0])
            place.set(title=f"{length} tokens", yticks=range(len(part)), yticklabels=part.index, xlabel="share closed")
            lowest = min(float(((part["uniform"] - part[key]) / span).min()) for key in ("previous_only", "first_only"))
            place.set_xlim(min(lowest, float(part["share"].min())) - 0.02, 1.01)
    return figure


_PARTS = (
    ("prior_key", "sink part u(j)", "key j"),
    ("prior_lag", "relative part K(d)", "lag d"),
    ("prior_total", "total, last row", "key j"),
    ("prior_probability", "its probabilities", "key j"),
)


def prior(rows: pd.DataFrame, task: str) -> Figure:
    """Goat's log-prior after a mixture: one row of panels a layer, one line a head."""
    rows = rows[rows["task"] == task]
    layers = sorted(rows["layer"].unique())
    note = "One line a head. u and K in nats; K holds the slope; probabilities are those of the prior at equal content."
    with style():
        figure, places = panels(WIDE, max(1, 4 * len(layers)), 1.5, columns=4, left=0.42, gap=0.45, note=note)
        for number, place in enumerate(places if layers else []):
            layer, (quantity, title, axis) = layers[number // 4], _PARTS[number % 4]
            part = rows[(rows["layer"] == layer) & (rows["quantity"] == quantity)]
            for head, line in part.groupby("head"):
                place.plot(line["index"], line["value"], color=COLOURS[int(head) % len(COLOURS)], linewidth=1.0)
            place.set(title=f"layer {layer}: {title}", xlabel=axis)
    return figure


def retrieval(tests: Mapping[str, pd.DataFrame], arms: Sequence[str]) -> Figure:
    """Heat maps of the answer's log-probability: depth down, length across; one per task, arm and test.

    tests: rows by what is written behind the arm's name.
    """
    drawn = [
        (f"{arm}{name}, {task}", rows[(rows["arm"] == arm) & (rows["task"] == task)], task)
        for task in GUESS
        for arm in arms
        for name, rows in tests.items()
    ]
    note = (
        "Colour: log-probability of the exact answer in nats, white at 0, darkest at a guess among all answers "
        "(passkey -4.5, needle -2.3) or less. Numbers: share of windows in which greedy decoding gives exactly the answer."
    )
    with style():
        figure, places = panels(WIDE, max(1, len(drawn)), 0.95, columns=7, left=0.34, gap=0.36, below=0.4, note=note)
        for place, (title, rows, task) in zip(places, drawn, strict=False):
            _heat(place, rows, task)
            place.set_title(title, size=7.5)
    return figure


def _heat(place: Axes, rows: pd.DataFrame, task: str) -> None:
    place.grid(visible=False)
    if rows.empty:
        place.set(xticks=[], yticks=[])
        return
    chance = GUESS[task]
    grid = rows.pivot_table(index="depth", columns="length", values="log_probability")
    hits = rows.pivot_table(index="depth", columns="length", values="correct")
    down, across = grid.shape
    place.imshow(
        grid.to_numpy(),
        cmap="Blues_r",
        vmin=chance,
        vmax=0.0,
        extent=(0, across, down, 0),
        aspect="auto",
        interpolation="none",
    )
    for (down, across), value in np.ndenumerate(hits.to_numpy()):
        dark = grid.to_numpy()[down, across] < 0.6 * chance
        text = f"{value:.2f}".removeprefix("0") if value < 1 else "1"
        place.text(across + 0.5, down + 0.5, text, size=5.5, ha="center", va="center", color="white" if dark else INK)
    place.set_xticks(np.arange(len(grid.columns)) + 0.5, [str(length) for length in grid.columns], size=6)
    place.set_yticks(np.arange(len(grid.index)) + 0.5, [f"{depth:g}" for depth in grid.index], size=6)


def reach(rows: pd.DataFrame) -> Figure:
    """Whether an arm that looks far finds what is far: far mass across, distant minus near items up; one panel a task."""
    note = (
        "At the longest windows: log-probability of an item at depth 0 minus that of one at depth 1, against far mass "
        f"(w = L/8). Full and named: arms that learnt the task within L by {LEARNT:g} nat or more over a guess. Red: "
        f"trained {LONGER_TIMES} times as long, after the fact."
    )
    with style():
        figure, places = panels(WIDE, len(GUESS), 2.6, left=0.6, gap=1.0, note=note)
        for place, task in zip(places, GUESS, strict=True):
            part = rows[rows["task"] == task]
            learnt = part["gain"] >= LEARNT
            place.axhline(0.0, color=CONTEXT, linewidth=0.9)
            place.plot(part["far_mass"][~learnt], part["gap"][~learnt], "o", color=MUTED, markerfacecolor="none")
            for colour, test in zip(COLOURS, (RETRIEVAL, LONGER), strict=False):
                some = part[learnt & (part["test"] == test)]
                place.plot(some["far_mass"], some["gap"], "o", color=colour)
                name, below = (f" x{LONGER_TIMES}", -10) if test == LONGER else ("", 3)
                for arm, x, y in zip(some["arm"], some["far_mass"], some["gap"], strict=True):
                    words = f"{arm}{name}"
                    place.annotate(words, (x, y), (4, below), textcoords="offset points", size=7.5, color=colour)
            place.set(title=task, xlabel="far mass", ylabel="distant minus near, nats", xlim=(-0.02, 1.12))
    return figure


def sinks(rows: pd.DataFrame, design: Design) -> Figure:
    """Attention to key 0 by window length: one panel an arm, one line a head, one colour a layer."""
    note = (
        "Mean over the last L/8 queries of held-out windows. Blue: first layer, red: second. Grey: 1/n, an even share. "
        "A line that leaves its panel falls below one millionth."
    )
    with style():
        figure, places = panels(WIDE, len(design.arms), 0.95, columns=7, left=0.34, gap=0.36, below=0.4, note=note)
        for place, arm in zip(places, design.arms, strict=True):
            part = rows[rows["arm"] == arm]
            for _, line in part.groupby(["layer", "head"]):
                layer = int(line["layer"].iloc[0])
                place.plot(line["length"], line["mass"], color=COLOURS[layer % len(COLOURS)], linewidth=0.9)
            if len(part):
                length = np.sort(part["length"].unique())
                place.plot(length, 1.0 / length, color=CONTEXT, linewidth=0.9)
                place.set_xticks(length, [str(n) for n in length], size=6)
            place.set(xscale="log", yscale="log", ylim=(1e-6, 1.5), yticks=[1e-6, 1e-3, 1])
            place.tick_params(axis="y", labelsize=6)
            place.minorticks_off()
            if len(part):
                place.set_xticks(length, [str(n) for n in length], size=6)
            place.set_title(arm, size=7.5)
    return figure


def margin(theory: pd.DataFrame, rows: pd.DataFrame) -> Figure:
    """How sensitive a row with a sink is to the others: theory with margins c ln n, and what the models do."""
    note = (
        "Left: lines are exact, bands hold every content of range 1, dots are explicit softmaxes over drawn and worst "
        "contents. Middle: each head at each length against the margin of its log-prior alone; lines: theory at the "
        "shortest and longest windows. Right: measured margins, one line a head, not below -20; dashed: growth like ln n, "
        "which keeps mass."
    )
    with style():
        figure, (left, middle, right) = panels(WIDE, 3, 2.4, left=0.55, gap=0.9, note=note)
        ends: list[Label] = []
        for colour, (factor, part) in zip(COLOURS, theory.groupby("factor"), strict=False):
            left.fill_between(part["keys"], part["lowest"], part["highest"], color=colour, alpha=0.12, linewidth=0)
            left.plot(part["keys"], part["sensitivity"], color=colour)
            ends.append(Label(float(part["sensitivity"].iloc[-1]), f"{factor:g} ln n", colour))
            for key in ("computed_low", "computed_high"):
                left.plot(part["keys"], part[key], ".", color=colour, markersize=2.5)
        left.set(xscale="log", title="1 − p of a sink with margin c ln n", xlabel="keys n", ylim=(-0.02, 1.02))
        label_ends(left, float(theory["keys"].max()), ends)
        have = rows.dropna(subset=["prior_margin"])
        middle.set(title="1 − p against the prior's margin", xlabel="margin of the log-prior, nats", ylim=(-0.02, 1.02))
        right.set(title="margin of key 0", xlabel="window length", ylabel="nats", xscale="log")
        if len(have):
            near = have[have["prior_margin"] > -20]
            middle.plot(near["prior_margin"], near["sensitivity"], ".", color=COLOURS[0], markersize=2.5)
            grid = np.linspace(near["prior_margin"].min(), max(near["prior_margin"].max(), 8.0), 100)
            for n in (rows["length"].min(), rows["length"].max()):
                middle.plot(grid, sensitivity(grid, n), color=MUTED, linewidth=0.8)
        if len(rows):
            for _, line in rows.groupby(["arm", "layer", "head"]):
                right.plot(line["length"], line["margin"].clip(lower=-20), color=COLOURS[0], linewidth=0.5, alpha=0.5)
            length = np.sort(rows["length"].unique())
            for start in (-5.0, 0.0, 5.0):
                right.plot(length, start + np.log(length / length[0]), color=MUTED, linewidth=0.8, linestyle="--")
            right.set_xticks(length, [str(n) for n in length])
            right.minorticks_off()
    return figure
