"""The training batch of a step as a pure function: the same for every arm, machine and cutting into micro-batches.

Shape legend: W windows, L window length in tokens. Starts come from the raw stream of a Philox generator whose key is
(data_seed, step); numpy promises that stream for all versions, which it does not for `Generator.integers`.
"""

from pathlib import Path

import numpy as np

from causal_priors.data.shards import Shards, opened
from causal_priors.errors import refuse


def training_batch(shards: Shards | str | Path, data_seed: int, step: int, windows: int, length: int) -> np.ndarray:
    """Return int64 [windows, length + 1]: ids of `windows` windows of the training split, one id more for the targets.

    Starts are uniform over all windows of the split, drawn with replacement. A folder in place of opened shards is
    checked at the first call. Raises `UserError` where the split is shorter than a window.
    """
    store = shards if isinstance(shards, Shards) else opened(Path(shards))
    count = len(store.train) - length
    if count < 1:
        problem = f"has {len(store.train)} tokens in its training split, a window takes {length + 1}"
        raise refuse(problem, file=store.folder, remedy="add text")
    starts_W = window_starts(data_seed, step, windows, count)
    return store.train[starts_W[:, None] + np.arange(length + 1)].astype(np.int64)


def window_starts(data_seed: int, step: int, windows: int, count: int) -> np.ndarray:
    """Return int64 [windows], each uniform on 0 .. count - 1.

    Raw 64-bit numbers are cut to the bits that `count` needs, and those not below `count` are passed over: no value
    is likelier than another, and the first W starts do not depend on how many are drawn.
    """
    stream = np.random.Philox(key=np.array([data_seed, step], dtype=np.uint64))
    shift = np.uint64(64 - max((count - 1).bit_length(), 1))
    accepted = np.empty(0, dtype=np.uint64)
    while len(accepted) < windows:
        # At least half of the numbers are accepted.
        drawn = stream.random_raw(2 * windows + 16) >> shift
        accepted = np.concatenate([accepted, drawn[drawn < count]])
    return accepted[:windows].astype(np.int64)
