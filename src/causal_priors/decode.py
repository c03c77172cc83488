"""Decoding token by token: what each token brings is computed once and kept, its place is looked up again every step.

Shape legend: B batch, T tokens so far, C width, V vocabulary, H heads, D head dim. Equal to the full forward pass up
to rounding for every arm: keys and values are cached as content, before rotation, so a log-prior that reads tokens (a
gate, a path sum) sees exactly what it sees in a whole window. Nothing in the study needs it; it shows that each arm is
causal in use and lets a trained checkpoint speak.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_priors.attention.rows import attention_rows
from causal_priors.errors import refuse
from causal_priors.model import Block, Transformer


class Decoder:
    """State of a batch of sequences under generation. `step` takes one token of each."""

    def __init__(self, model: Transformer) -> None:
        self.model = model
        self._layers = [_Layer(block) for block in model.layers]

    @torch.no_grad()
    def step(self, ids_B: Tensor) -> Tensor:
        """Append one token per sequence; return the logits [B, V] of the next."""
        x_B1C: Tensor = self.model.embedding(ids_B[:, None])
        for layer in self._layers:
            x_B1C = layer.step(x_B1C)
        return F.linear(self.model.final_norm(x_B1C)[:, 0], self.model.embedding.weight)


class _Layer:
    def __init__(self, block: Block) -> None:
        self.block = block
        self.normed_BTC: Tensor | None = None
        self.qkv_3BHTD: Tensor | None = None
        self.operator: Any = None
        transport = block.arm.transport
        if transport is None:
            return
        if transport.solver != "exact":
            raise refuse("cannot be decoded", key="solver", value=transport.solver, remedy="use the exact solver")
        from causal_priors.attention.transport import Decoder as Operator

        self.operator = Operator(strength=transport.strength)

    def step(self, x_B1C: Tensor) -> Tensor:
        normed, qkv = self.block.content(x_B1C)
        if self.normed_BTC is not None and self.qkv_3BHTD is not None:
            normed, qkv = torch.cat((self.normed_BTC, normed), 1), torch.cat((self.qkv_3BHTD, qkv), 3)
        self.normed_BTC, self.qkv_3BHTD = normed, qkv
        q_BHTD, k_BHTD, v_BHTD, prior = self.block.place(normed, qkv)
        if self.operator is None:
            last = range(k_BHTD.shape[2] - 1, k_BHTD.shape[2])
            return self.block.finish(x_B1C, attention_rows(q_BHTD, k_BHTD, prior, None, last) @ v_BHTD)
        self.operator.log_prior = prior
        return self.block.finish(x_B1C, self.operator.step(q_BHTD[:, :, -1:], k_BHTD[:, :, -1:], v_BHTD[:, :, -1:]))
