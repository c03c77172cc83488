"""What experiment 0006 does at one scale, as data. `registered` reads it from the sealed protocol. Imports no torch."""

import math
from dataclasses import dataclass, replace
from typing import Any

from causal_priors.goat.mixture import Mixture
from causal_priors.scale import Scale, Size

PASSKEY, NEEDLE = "passkey", "needle"
# Log-probability of the answer for who knows its form alone: two different digits, one digit.
GUESS = {PASSKEY: -math.log(90), NEEDLE: -math.log(10)}
# A task counts as learnt where the answer at L is by so many nats likelier than that.
LEARNT = 1.0


@dataclass(frozen=True)
class CopyTest:
    """The mixture test. lengths in multiples of L; position_lr multiplies the learning rate of positional parameters."""

    mixture: Mixture
    steps: int
    windows: int
    position_lr: float
    lengths: tuple[int, ...]
    sequences: int


@dataclass(frozen=True)
class RetrievalTest:
    """The retrieval test: windows of each kind in a training batch, and lengths, depths and templates of the test."""

    steps: int
    text_windows: int
    passkey_windows: int
    needle_windows: int
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    examples: int
    passkey: str
    needle: str
    end: str
    names: tuple[str, ...]

    @property
    def windows(self) -> int:
        """Windows of a training batch."""
        return self.text_windows + self.passkey_windows + self.needle_windows


@dataclass(frozen=True)
class SinkTest:
    """The sink measurement: lengths in multiples of L, held-out windows at each."""

    lengths: tuple[int, ...]
    windows: int


@dataclass(frozen=True)
class Design:
    """Experiment 0006 at one scale."""

    scale: Scale
    arms: tuple[str, ...]
    seed: int
    copy: CopyTest
    retrieval: RetrievalTest
    sinks: SinkTest
    predictions: tuple[dict[str, Any], ...]
    seal: str

    @property
    def train_length(self) -> int:
        """L in tokens."""
        return self.size.train_length

    @property
    def size(self) -> Size:
        """Size S of the scale."""
        return self.scale.sizes["S"]

    def budget(self, steps: int, windows: int) -> Size:
        """Size S with another number of steps and windows a step: what the learning-rate schedule runs over."""
        return replace(self.size, steps=steps, tokens_per_step=windows * self.train_length)
