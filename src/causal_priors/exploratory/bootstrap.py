"""Intervals for a mean of paired differences, by bootstrap over blocks.

The unit that is drawn is the evaluation block: 8L targets from inside one document, the same ones for both sides of a
comparison, whatever the window length. Windows and positions within a block depend on each other and are never drawn
apart. The interval is bias-corrected and accelerated (BCa), since differences of blocks are often skewed: a change of a
bias may hurt few blocks much. It says how much the mean would move with other blocks like these, for the checkpoints at
hand; nothing about other seeds, other text or another training.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap

CONFIDENCE = 0.95
RESAMPLES = 9999
SEED = 20_251_130
# Fewer blocks than this say next to nothing of how blocks spread.
LEAST = 8
# The sign of a change that is below the resolution of the arithmetic.
UNRESOLVED = "unresolved"


@dataclass(frozen=True)
class Interval:
    """Mean difference of `n` blocks and its interval, NaN where there are too few blocks.

    neighbours: correlation of the differences of blocks that follow each other; far above zero, intervals are too
    narrow. NaN where differences do not vary.
    """

    n: int
    mean: float
    low: float
    high: float
    neighbours: float

    @property
    def sign(self) -> str:
        """Where the interval lies: "up" or "down" of zero, "zero" if nothing differs, "open" or "few blocks"."""
        if math.isnan(self.low):
            return "few blocks"
        if self.low == self.high == 0:
            return "zero"
        if self.low > 0:
            return "up"
        return "down" if self.high < 0 else "open"


def paired_interval(differences: ArrayLike) -> Interval:
    """Return mean and interval of one difference per block, in the order of the blocks.

    Every call draws the same blocks, so that two comparisons differ by their values alone.
    """
    values = np.asarray(differences, dtype=np.float64)
    mean = math.fsum(values) / len(values)
    if (values == values[0]).all():
        # Whatever is drawn, the mean is this. Exactly zero stays exactly zero.
        return Interval(len(values), float(values[0]), float(values[0]), float(values[0]), math.nan)
    centred = values - mean
    low, high = (mean + end for end in _around(centred)) if len(values) >= LEAST else (math.nan, math.nan)
    neighbours = float(centred[1:] @ centred[:-1] / (centred @ centred))
    return Interval(len(values), mean, low, high, neighbours)


def _around(centred: NDArray[np.float64]) -> tuple[float, float]:
    # In units of the spread: differences of 1e-14, or that are all but equal, would underflow when squared and cubed.
    scale = float(np.abs(centred).max())
    found = bootstrap(
        (centred / scale,),
        np.mean,
        n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        random_state=np.random.default_rng(SEED),
    ).confidence_interval
    return float(found.low) * scale, float(found.high) * scale
