"""The gradient of one step: a batch in parts, in one process or in several.

Shape legend: W windows of a step, B windows of a forward pass, T tokens of a window (the training length). A part's mean
loss counts by its share of the step's windows, so the gradient is that of the mean over the whole step however it is cut:
equal but for the order of sums. On a GPU matrix products take bfloat16 (autocast); losses and gradients are float32.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from causal_priors.errors import refuse
from causal_priors.model import Transformer
from causal_priors.train.parallel import Team


@dataclass(frozen=True)
class Cut:
    """How the `windows` of a step are worked off: `together` of them in one forward pass of one process.

    half: matrix products in bfloat16.
    """

    windows: int
    together: int
    half: bool
    team: Team

    @classmethod
    def of(cls, windows: int, length: int, micro_batch: int | None, half: bool, team: Team) -> "Cut":
        """Cut into passes of at most `micro_batch` tokens, and of one window at least; None: a process's whole share.

        Raises `UserError` where the windows cannot be shared evenly.
        """
        if windows % team.size:
            raise refuse(
                f"cannot share {windows} windows a step evenly",
                key="processes",
                value=team.size,
                remedy="use a number that divides it",
            )
        share = windows // team.size
        return cls(windows, share if micro_batch is None else min(share, max(1, micro_batch // length)), half, team)

    def add_gradient(self, model: Transformer, batch: np.ndarray) -> Tensor:
        """Add to the model's gradients this process's part of those of `batch` [W, T + 1]; return its part of the loss.

        Summed over the team they are gradient and mean loss of the step.
        """
        device = model.embedding.weight.device
        share = self.windows // self.team.size
        ids_WT = torch.from_numpy(batch[self.team.rank * share : (self.team.rank + 1) * share]).to(device)
        total: Tensor | None = None
        for ids_BT in ids_WT.split(self.together):  # type: ignore[no-untyped-call]
            loss = self._loss(model, ids_BT)
            torch.autograd.backward(loss)
            total = loss.detach() if total is None else total + loss.detach()
        assert total is not None
        return total

    def _loss(self, model: Transformer, ids_BT: Tensor) -> Tensor:
        with torch.autocast(ids_BT.device.type, torch.bfloat16, enabled=self.half):
            losses_BT: Tensor = model(ids_BT[:, :-1], ids_BT[:, 1:])
        loss = losses_BT.mean()
        return loss if len(ids_BT) == self.windows else loss * (len(ids_BT) / self.windows)
