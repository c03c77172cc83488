"""Decoding: one row at a time, carrying log C, equal to the full forward pass.

Shape legend: B batch, H heads, T tokens so far, D head dim.
"""

import torch
from torch import Tensor

from . import blocked
from .interface import check_inputs, check_strength
from .prior import LogPriorLike, as_bias
from .scalar import solve_row


class Decoder:
    """State of one sequence being generated: its keys, its values, and log C of every key [B, H, T].

    log_prior: None, a tensor broadcastable to [B, H, T, T] that covers the rows to come, or an object as in `prior.py`
    that knows the tokens so far. No gradients.
    """

    def __init__(self, *, strength: float, log_prior: LogPriorLike = None) -> None:
        self.strength = check_strength(strength)
        self.log_prior = log_prior
        self.keys_BHTD = self.values_BHTD = torch.empty(0, 0, 0, 0)
        self.carry_BHT = torch.empty(0, 0, 0)

    def __len__(self) -> int:
        return self.keys_BHTD.shape[2]

    @torch.no_grad()
    def prefill(self, q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor) -> Tensor:
        """Take a whole prompt at once; returns its outputs [B, H, T, D]. Only as the first call."""
        check_inputs(q_BHTD, k_BHTD, v_BHTD)
        if len(self):
            raise ValueError(f"prefill after {len(self)} rows: a prompt comes first")
        out_BHTD, self.carry_BHT = blocked.forward_with_carry(q_BHTD, k_BHTD, v_BHTD, self.log_prior, self.strength)
        self.keys_BHTD, self.values_BHTD = k_BHTD, v_BHTD
        return out_BHTD

    @torch.no_grad()
    def step(self, q_BH1D: Tensor, k_BH1D: Tensor, v_BH1D: Tensor) -> Tensor:
        """Add one row; returns its output [B, H, 1, D]."""
        check_inputs(q_BH1D, k_BH1D, v_BH1D)
        if q_BH1D.shape[2] != 1:
            raise ValueError(f"q has {q_BH1D.shape[2]} rows: a step takes one")
        wide = torch.float64 if q_BH1D.dtype == torch.float64 else torch.float32
        row = len(self)
        if row == 0:
            self.keys_BHTD, self.values_BHTD = k_BH1D, v_BH1D
            self.carry_BHT = q_BH1D.new_empty(*q_BH1D.shape[:2], 0, dtype=wide)
        else:
            self.keys_BHTD = torch.cat([self.keys_BHTD, k_BH1D], 2)
            self.values_BHTD = torch.cat([self.values_BHTD, v_BH1D], 2)
        scores_BH1T = (q_BH1D.to(wide) * q_BH1D.shape[-1] ** -0.5) @ self.keys_BHTD.to(wide).mT
        self._bias(scores_BH1T, row)
        scores_BHT = scores_BH1T[:, :, 0]
        carry_BHT = torch.nn.functional.pad(self.carry_BHT, (0, 1), value=-torch.inf)
        a_BH1 = solve_row(scores_BHT, carry_BHT, self.strength)[..., None]
        self.carry_BHT = torch.logaddexp(carry_BHT, scores_BHT + a_BH1)
        plan_BHT = torch.softmax(scores_BHT - self.strength * self.carry_BHT, -1)
        return (plan_BHT[:, :, None] @ self.values_BHTD.to(wide)).to(v_BH1D.dtype)

    def _bias(self, scores_BH1T: Tensor, row: int) -> None:
        batch, heads, _, keys = scores_BH1T.shape
        if isinstance(self.log_prior, Tensor):
            prior = self.log_prior
            prior = prior[..., row : row + 1, :] if prior.dim() >= 2 and prior.shape[-2] != 1 else prior
            scores_BH1T += prior[..., :keys] if prior.dim() and prior.shape[-1] != 1 else prior
            return
        as_bias(self.log_prior, (batch, heads, keys), scores_BH1T.dtype).add_to(scores_BH1T, row)
