"""What a sink needs: its weight at a margin over n - 1 other keys, and how the margin must grow with n.

With margin delta over the others (in the sense of log-mean-exp) key 0 holds p = 1 / (1 + (n - 1) exp(-delta)). The
output is p v_0 plus what the others bring, so it lies within (1 - p) max |v_j - v_0| of v_0 whatever they are: 1 - p is
the sensitivity to them. At delta = c ln n it tends to one for c < 1, to a half at c = 1 and to zero above, so growth
like ln n suffices, and contents of range D shift delta by at most D. Pure NumPy, no torch.
"""

import math

import numpy as np
import pandas as pd

from causal_priors.goat.draws import Draws

# The table: margins c ln n for these c, at these numbers of keys; contents of range D are computed where n is small.
FACTORS = (0.0, 0.5, 1.0, 1.5, 2.0)
KEYS = tuple(2**power for power in range(4, 21))
RANGE, DRAWN, EXPLICIT = 1.0, 64, 4096
_STREAM = 9 << 32


def sensitivity(margin: np.ndarray | float, keys: np.ndarray | int) -> np.ndarray:
    """1 - p of key 0 at `margin` nats over the `keys` - 1 others."""
    return np.asarray(1.0 / (1.0 + np.exp(margin) / (np.asarray(keys) - 1.0)))


def needed_margin(keys: np.ndarray | int, mass: float) -> np.ndarray:
    """Margin in nats at which key 0 holds `mass`: ln(n - 1) + ln(p / (1 - p))."""
    return np.log(np.asarray(keys) - 1.0) + math.log(mass / (1.0 - mass))


def computed(margin: float, content: np.ndarray) -> np.ndarray:
    """1 - p by an explicit softmax over logits `content` [N, n], with `margin` added to key 0."""
    logits = content.copy()
    logits[:, 0] += margin
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(1.0 - weights[:, 0] / weights.sum(axis=1))


def margin_table() -> pd.DataFrame:
    """Return one row per c and n: margin, sensitivity, its bounds for contents of range D, and extremes computed.

    computed_low and computed_high are the extremes of an explicit softmax over contents drawn from 0 .. D and the two
    worst ones; NaN above `EXPLICIT` keys.
    """
    rows = []
    for keys in KEYS:
        content = Draws(_STREAM, keys).uniform(DRAWN, keys) * RANGE if keys <= EXPLICIT else None
        if content is not None:
            content[0], content[1] = 0.0, RANGE
            content[0, 0], content[1, 0] = RANGE, 0.0
        for factor in FACTORS:
            margin = factor * math.log(keys)
            found = np.array([np.nan]) if content is None else computed(margin, content)
            rows.append(
                {
                    "factor": factor,
                    "keys": keys,
                    "margin": margin,
                    "sensitivity": float(sensitivity(margin, keys)),
                    "lowest": float(sensitivity(margin + RANGE, keys)),
                    "highest": float(sensitivity(margin - RANGE, keys)),
                    "computed_low": found.min(),
                    "computed_high": found.max(),
                }
            )
    return pd.DataFrame(rows).sort_values(["factor", "keys"], ignore_index=True)
