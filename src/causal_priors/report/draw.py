"""The stage of figures: every one as SVG and PNG, and as a narrow SVG for the page on a phone."""

from collections.abc import Sequence
from pathlib import Path

from causal_priors.artifacts import atomic_path
from causal_priors.report.data import Tables, gather
from causal_priors.report.figures import FIGURES
from causal_priors.report.figures.save import write_figure
from causal_priors.report.figures.theme import LAYOUTS, WIDE, style
from causal_priors.scale import Scale


def figures_stage(
    scale: Scale,
    preregistration: str | Path,
    evaluations: Sequence[Path],
    summary: str | Path,
    theory: str | Path,
    margins: str | Path,
    out: Path,
    swaps: Path,
) -> None:
    """Draw every figure into the folder `out`, and write the table of bias swaps that one of them shows.

    evaluations: evaluation and intervention tables in their run folders, which also hold what training logged. Raises
    `UserError` where a table is missing or damaged.
    """
    tables = gather(scale, preregistration, evaluations, summary, theory, margins)
    with atomic_path(swaps) as temporary:
        tables.swaps.to_csv(temporary, index=False, float_format="%.10g", lineterminator="\n")
    draw_all(tables, out)


def draw_all(tables: Tables, out: Path) -> None:
    """Draw every figure: `{name}.svg` and `.png`, and `narrow/{name}.svg`."""
    for figure in FIGURES:
        for layout in LAYOUTS:
            folder = out if layout is WIDE else out / layout.name
            with style():
                write_figure(figure.draw(tables, layout), folder / f"{figure.name}.svg", raster=layout is WIDE)
