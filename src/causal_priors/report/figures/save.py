"""Figures as files: SVG whose bytes depend on the figure alone, and PNG."""

import re
from io import BytesIO
from pathlib import Path

from matplotlib.figure import Figure

from causal_priors.artifacts import write_bytes, write_text

# Hundredths of a point: a third of the bytes, and nothing that an eye could see.
_NUMBER = re.compile(r"(?<![#\w])-?\d+\.\d{3,}")
_PATHS = re.compile(r' (?:d|transform|x|y|style)="[^"]*"')
_METADATA = re.compile(r"\s*<metadata>.*?</metadata>", re.DOTALL)


def svg(figure: Figure) -> str:
    """Return a figure as SVG, without date or versions."""
    buffer = BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = _METADATA.sub("", buffer.getvalue().decode())
    return _PATHS.sub(lambda match: _NUMBER.sub(lambda number: _short(number.group()), match.group()), text)


def _short(number: str) -> str:
    return f"{float(number):.2f}".rstrip("0").rstrip(".")


def write_figure(figure: Figure, out: Path, *, raster: bool) -> None:
    """Write `out` as SVG and, where asked, as PNG beside it."""
    write_text(out, svg(figure))
    if raster:
        buffer = BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
        write_bytes(out.with_suffix(".png"), buffer.getvalue())
