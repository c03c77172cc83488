"""The figures of a study: one module each, a pure function from its tidy tables to a matplotlib Figure.

This table imports no matplotlib, so that the Snakefile and the page can read names and captions.
"""

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from causal_priors.report.data import Tables
    from causal_priors.report.figures.theme import Layout


@dataclass(frozen=True)
class Drawn:
    """A figure: its module and file name, a title, words for a reader who has not seen the study, and its tests."""

    name: str
    title: str
    caption: str
    tests: tuple[str, ...] = ()

    def draw(self, tables: "Tables", layout: "Layout") -> "Figure":
        """Draw it."""
        figure: Figure = import_module(f"{__name__}.{self.name}").draw(tables, layout)
        return figure


FIGURES = (
    Drawn(
        "loss_length",
        "Loss against window length",
        "The same held-out text, cut into windows of the training length L and of two, four and eight times that. "
        "An arm that extrapolates keeps its line flat or falling: longer windows give more context. An arm that "
        "does not rises beyond L.",
        ("0001-a", "0001-b", "0003-b"),
    ),
    Drawn(
        "loss_position",
        "Loss against position",
        "Windows of eight times the training length, by where in the window a token stands. Positions up to L are "
        "what training saw; if the loss rises to the right of them, the arm fails at distances it never met.",
        ("0002-a", "0002-b", "0003-a"),
    ),
    Drawn(
        "far_mass",
        "Far mass against window length",
        "The share of attention that falls on tokens at a distance of L/8 or more. Where it grows with the window,"
        " attention is diluted: near tokens lose what ever more far ones take. Where it stays, it is bounded.",
        ("0005-a", "0005-b"),
    ),
    Drawn(
        "swaps",
        "What cap and repair change",
        "Trained checkpoints whose log-prior is changed beyond L, without any training. Cap lets it fall no "
        "further there, which should raise far mass and loss; repair makes it fall geometrically, which should "
        "lower both.",
        ("0004-a", "0004-b", "0004-c"),
    ),
    Drawn(
        "census",
        "Where exponents end",
        "A log-prior of exponent α weighs a key at distance d by (1 + d) to the power −α. Above one the weights "
        "have a finite sum, so a window holds nearly all of them at any length; at or below one every window is "
        "diluted in the end.",
        ("0003-b",),
    ),
    Drawn(
        "training",
        "Exponents during training",
        "Whether training draws exponents towards the boundary at one. Arms that start at it cannot show that, so "
        "those that start away from it decide. Below each panel: the mean distance from one, at the first and the "
        "last step.",
    ),
    Drawn(
        "margins",
        "From a tolerance to a margin",
        "How far above one exponents must stay for far mass to grow by no more than a tolerance τ is a matter of "
        "arithmetic. Three margins were chosen so, before training; whether trained models keep the tolerance is "
        "what is tested.",
        ("0005-a", "0005-b"),
    ),
    Drawn(
        "window_mass",
        "Priors at any length",
        "No training here beyond the exponents: what each prior alone does with up to a million tokens. Close to "
        "an exponent of one a prior whose far mass is bounded looks diluting over any length anyone trains at.",
        ("0004-c", "0005-a"),
    ),
    Drawn(
        "transport",
        "The transport plan and its limit",
        "Transport gives each key a budget that earlier queries have drawn on. For scores that say nothing its "
        "plan tends to a fixed profile over relative position: it favours near keys, but in proportion to the "
        "length, so windows are diluted.",
        ("0001-a", "0001-b"),
    ),
    Drawn(
        "step_times",
        "What a step costs",
        "Time of one training step, as a ratio to that of rope, beside the ratios that the source reports for its "
        "own code.",
    ),
)
"""In the order of the page."""
