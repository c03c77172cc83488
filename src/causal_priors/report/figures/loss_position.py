"""Loss against the position inside one long window, every arm and seed."""

from matplotlib.figure import Figure

from causal_priors.report.data import Tables
from causal_priors.report.figures.lengths import Axis, draw_lines
from causal_priors.report.figures.theme import Layout

# Bins as in the kind "evaluation"; places are bin numbers on a scale that doubles, as the bins do.
BINS = Axis("position in a window of 8L", (1, 2, 4, 8), ("up to L", "to 2L", "to 4L", "to 8L"))


def draw(tables: Tables, layout: Layout) -> Figure:
    """Mean over the targets at positions 1..L, L+1..2L, 2L+1..4L and 4L+1..8L of windows of 8L."""
    frame = tables.positions.assign(x=2.0 ** tables.positions["bin"].astype(float), y=tables.positions["loss"])
    return draw_lines(frame, tables, layout, BINS, "loss, nats per token", "{:.2f}".format)
