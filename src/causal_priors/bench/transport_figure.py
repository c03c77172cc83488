"""Draws the operator's figure: `python -m causal_priors.bench.transport_figure [OUT.svg]`.

It lies here and not beside the operator, whose every module counts for the code digest of the transport arms.
"""

import sys
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.colors import LogNorm

from causal_priors.attention import transport
from causal_priors.attention.transport import plan_rows

STRENGTHS = (0.0, 0.5, 0.8, 0.95)
LENGTH = 64


def draw(path: Path) -> None:
    """One panel a strength: the plan of the same random scores (standard deviation 1)."""
    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "transport"
    from matplotlib import pyplot

    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, LENGTH, 16, dtype=torch.float64, generator=generator) for _ in range(2))
    figure, panels = pyplot.subplots(1, len(STRENGTHS), figsize=(11, 3), layout="constrained", sharey=True)
    for panel, strength in zip(panels, STRENGTHS, strict=True):
        plan = plan_rows(q, k, None, strength, torch.arange(LENGTH))[0, 0].numpy()
        picture = panel.imshow(plan, norm=LogNorm(1e-3, 1), cmap="viridis")
        panel.set(title="softmax (strength 0)" if strength == 0 else f"strength {strength:g}", xlabel="key j")
    panels[0].set_ylabel("query i")
    figure.colorbar(picture, ax=panels, label="P[i, j]", extend="min")
    figure.savefig(path, metadata={"Date": None}, dpi=100)


if __name__ == "__main__":
    draw(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(transport.__file__).with_name("plan.svg"))
