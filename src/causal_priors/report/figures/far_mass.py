"""Far mass against window length, every arm and seed."""

from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.lengths import draw_lines
from causal_priors.report.figures.loss_length import MULTIPLES
from causal_priors.report.figures.theme import Layout
from causal_priors.runs import EDITS


def draw(tables: Tables, layout: Layout) -> Figure:
    """Share of attention at distance L/8 or more, in windows of L to 8L."""
    frame = tables.lengths[~tables.lengths["variant"].isin(EDITS)]
    frame = frame.assign(x=frame["length"] / frame["train_length"], y=frame["far_mass_eighth"])
    return draw_lines(frame, tables, layout, MULTIPLES, "far mass, share of attention", "{:.2f}".format)
