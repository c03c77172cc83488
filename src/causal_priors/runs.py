"""A run's identity: (size, arm, training length, seed), spelled once.

Protocols name the training length as a multiple of the size's own (1, 2, 4), since tokens differ between scales; a
run's folder and file names hold it in tokens: `C-cable-L128-s0`.
"""

import re
from dataclasses import dataclass

from causal_priors.errors import refuse
from causal_priors.scale import Scale, Size

_NAME = re.compile(r"(?P<size>[A-Z])-(?P<arm>[a-z0-9]+(?:-[a-z0-9]+)*)-L(?P<length>[1-9]\d*)-s(?P<seed>0|[1-9]\d*)")

EVALUATION_FACTORS = (1, 2, 4, 8)
EDITS = ("cap", "repair")


@dataclass(frozen=True, order=True)
class Run:
    """One training run: a size and arm of the study at `multiple` times the size's training length."""

    size: str
    arm: str
    multiple: int
    seed: int

    def train_length(self, scale: Scale) -> int:
        """Training length L in tokens at `scale`."""
        return self.multiple * scale.sizes[self.size].train_length

    def name(self, scale: Scale) -> str:
        """Folder name at `scale`."""
        return f"{self.size}-{self.arm}-L{self.train_length(scale)}-s{self.seed}"

    def budget(self, scale: Scale) -> Size:
        """The run's size and budget at `scale`."""
        return scale.sizes[self.size]

    @property
    def init_seed(self) -> int:
        """Seed of the weights."""
        return self.seed

    @property
    def data_seed(self) -> int:
        """Seed of the training batches."""
        return 1000 + self.seed


def parse_run(name: str, scale: Scale) -> Run:
    """Return the run that `name` spells at `scale`.

    Raises `UserError` for another spelling, an unknown size or a length that is no multiple of the size's own.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise refuse("is not a run", value=name, remedy="write it as S-rope-L64-s0")
    if match["size"] not in scale.sizes:
        known = ", ".join(scale.sizes)
        raise refuse(f"has an unknown size {match['size']!r}", value=name, remedy=f"sizes are {known}")
    base = scale.sizes[match["size"]].train_length
    length = int(match["length"])
    if length % base:
        raise refuse(
            f"trains at no multiple of L = {base}",
            value=name,
            remedy=f"scale {scale.name} uses L = {base}, {2 * base}, {4 * base}",
        )
    return Run(match["size"], match["arm"], length // base, int(match["seed"]))
