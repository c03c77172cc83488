"""Random numbers whose stream numpy promises for all versions: the raw output of Philox, by key."""

import numpy as np

_UNIT = 2.0**-53


class Draws:
    """One stream of numbers; (stream, step) is its key, so equal keys give equal numbers whatever else was drawn."""

    def __init__(self, stream: int, step: int = 0) -> None:
        self._raw = np.random.Philox(key=np.array([stream, step], dtype=np.uint64))

    def uniform(self, *shape: int) -> np.ndarray:
        """Return float64 in [0, 1)."""
        raw = self._raw.random_raw(int(np.prod(shape, dtype=np.int64)))
        unit: np.ndarray = (np.asarray(raw) >> np.uint64(11)) * _UNIT
        return unit.reshape(shape)

    def below(self, bound: int, *shape: int) -> np.ndarray:
        """Return int64 in 0 .. bound - 1, uneven by less than bound / 2^53."""
        return (self.uniform(*shape) * bound).astype(np.int64)

    def different(self, bound: int, count: int, rows: int) -> np.ndarray:
        """Return int64 [rows, count], each row `count` different numbers below `bound`, all orders equally likely."""
        return np.argsort(self.uniform(rows, bound), axis=1, kind="stable")[:, :count]
