"""Held-out loss against window length, every arm and seed."""

from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.lengths import Axis, draw_lines
from causal_priors.report.figures.theme import Layout
from causal_priors.runs import EDITS

MULTIPLES = Axis("window length, in training lengths", (1, 2, 4, 8), ("L", "2L", "4L", "8L"))


def draw(tables: Tables, layout: Layout) -> Figure:
    """Mean over all targets at windows of L to 8L; the same text at every length."""
    frame = tables.lengths[~tables.lengths["variant"].isin(EDITS)]
    frame = frame.assign(x=frame["length"] / frame["train_length"], y=frame["loss"])
    return draw_lines(frame, tables, layout, MULTIPLES, "loss, nats per token", "{:.2f}".format)
