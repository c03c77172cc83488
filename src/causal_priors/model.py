"""The transformer: a GPT-2 block in which only position differs from arm to arm.

Shape legend: B batch, T tokens, C width, H heads, D head dim, V vocabulary. Pre-LayerNorm, biases everywhere,
tanh-GELU, tied embedding, no dropout, no position embedding (study.md 1). Unusual: everything that knows about position
(rotation, log-prior) draws its initial values from a random stream of its own, so all other weights are bit-equal in
every arm of a size; and `forward` returns losses, never logits, so that a large vocabulary is walked in pieces.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from causal_priors.arms import Arm, Part
from causal_priors.attention.dispatch import attend
from causal_priors.attention.rotary import heads
from causal_priors.errors import refuse
from causal_priors.gelu import gelu
from causal_priors.losses import token_losses
from causal_priors.precision import full_precision, wide
from causal_priors.priors.base import BoundPrior, Geometry, LogPrior
from causal_priors.scale import Size

# (n, w) in tokens: see `Transformer.forward`.
Far = tuple[int, int]
INIT_STD = 0.02
# Torch's CPU generator keeps 32 bits of a seed; this offset keeps the positional stream apart from any run's own seed.
_POSITION_STREAM = 0x9E3779B9


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**32)


def _build(part: Part | None, geometry: Geometry, generator: torch.Generator, margin: float | None) -> Any:
    """A positional part of an arm. An option `tolerance` stands for the margin that the theory stage found for it."""
    if part is None:
        return None
    options = dict(part.options)
    if options.pop("tolerance", None) is not None:
        options["margin"] = margin
    return part.load()(geometry, generator, **options)


class Block(nn.Module):
    """One layer: attention, then a multilayer perceptron, each on a normed copy of the residual stream."""

    def __init__(
        self, size: Size, arm: Arm, geometry: Geometry, position: torch.Generator, margin: float | None
    ) -> None:
        super().__init__()
        width = size.width
        self.arm, self.geometry = arm, geometry
        self.attention_norm = nn.LayerNorm(width, eps=1e-5)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp_norm = nn.LayerNorm(width, eps=1e-5)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.rotation = _build(arm.rotation, geometry, position, margin)
        self.log_prior: LogPrior | None = _build(arm.log_prior, geometry, position, margin)

    def draw(self, content: torch.Generator, residual_std: float) -> None:
        """Draw the weights that have nothing to do with position."""
        for layer, std in (
            (self.qkv, INIT_STD),
            (self.out, residual_std),
            (self.up, INIT_STD),
            (self.down, residual_std),
        ):
            nn.init.normal_(layer.weight, std=std, generator=content)
            nn.init.zeros_(layer.bias)

    def content(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """What each token brings by itself: the normed input [B, T, C]; query, key and value [3, B, H, T, D]."""
        batch, length, _ = x_BTC.shape
        normed_BTC = self.attention_norm(x_BTC)
        qkv = self.qkv(normed_BTC).view(batch, length, 3, self.geometry.heads, self.geometry.head_dim)
        return normed_BTC, qkv.permute(2, 0, 3, 1, 4)

    def place(self, normed_BTC: Tensor, qkv_3BHTD: Tensor) -> tuple[Tensor, Tensor, Tensor, BoundPrior | None]:
        """Put a window's tokens in their places: q and k ready to be multiplied, v, the log-prior of this window."""
        prior = None
        if self.log_prior is not None:
            with full_precision(normed_BTC.device):
                tokens = self.log_prior.tokens(wide(normed_BTC), wide(qkv_3BHTD[0]), wide(qkv_3BHTD[1]))
            prior = BoundPrior(self.log_prior, tokens)
        tables = None if self.rotation is None else self.rotation.tables(qkv_3BHTD)
        q_BHTD, k_BHTD, v_BHTD = self.turn(qkv_3BHTD, tables)
        if self.arm.log_n:
            factor_T1 = log_n_scale(q_BHTD.shape[2], self.geometry.train_length, wide(q_BHTD[:0]))
            q_BHTD = (q_BHTD * factor_T1).to(q_BHTD.dtype)
        return q_BHTD, k_BHTD, v_BHTD, prior

    def turn(self, qkv_3BHTD: Tensor, tables: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Query and key rotated by the tables, if any, and value: [B, H, T, D] each."""
        return heads(qkv_3BHTD, tables)

    def finish(self, x_BTC: Tensor, mixed_BHTD: Tensor) -> Tensor:
        """The next residual stream from this one and what attention mixed."""
        x_BTC = x_BTC + self.out(mixed_BHTD.transpose(1, 2).reshape(x_BTC.shape))
        hidden_BTM = gelu(self.up(self.mlp_norm(x_BTC)))
        next_BTC: Tensor = x_BTC + self.down(hidden_BTM)
        return next_BTC

    def forward(self, x_BTC: Tensor, far: Sequence[Far] = ()) -> tuple[Tensor, dict[Far, Tensor]]:
        """The next residual stream, and each far mass asked for [B, H]."""
        q_BHTD, k_BHTD, v_BHTD, prior = self.place(*self.content(x_BTC))
        if not far:
            return self.finish(x_BTC, attend(q_BHTD, k_BHTD, v_BHTD, prior, self.arm.transport)), {}
        # Inside the function: training does not depend on how far mass is measured.
        from causal_priors.attention.rows import attend_measuring

        mixed_BHTD, mass = attend_measuring(q_BHTD, k_BHTD, v_BHTD, prior, self.arm.transport, far)
        return self.finish(x_BTC, mixed_BHTD), mass


def log_n_scale(length: int, train_length: int, like: Tensor) -> Tensor:
    """Factor ln n_i / ln L of each query row, n_i = i + 1: [T, 1] (B.2b). It multiplies the content logit only."""
    n_T = torch.arange(1, length + 1, dtype=torch.float64, device=like.device)
    return (n_T.log() / math.log(train_length)).to(like.dtype)[:, None]


class Transformer(nn.Module):
    """A language model of one size and arm. The same `init_seed` gives the same non-positional weights in every arm."""

    def __init__(
        self,
        size: Size,
        vocabulary: int,
        arm: Arm,
        train_length: int,
        init_seed: int,
        margins: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        self.arm, self.train_length = arm, train_length
        margin = (margins or {}).get(arm.key)
        if margin is None and arm.log_prior is not None and "tolerance" in arm.log_prior.options:
            raise refuse("needs a margin from the theory stage", key="arm", value=arm.key, remedy="run stage `margins`")
        geometry = Geometry(size.width, size.heads, size.head_dim, train_length)
        content, position = _generator(init_seed), _generator(init_seed + _POSITION_STREAM)
        self.embedding = nn.Embedding(vocabulary, size.width)
        self.blocks = nn.ModuleList(Block(size, arm, geometry, position, margin) for _ in range(size.depth))
        self.final_norm = nn.LayerNorm(size.width, eps=1e-5)
        nn.init.normal_(self.embedding.weight, std=INIT_STD, generator=content)
        for block in self.layers:
            block.draw(content, INIT_STD / math.sqrt(2 * size.depth))

    @property
    def layers(self) -> list[Block]:
        """The blocks, typed."""
        return [cast(Block, block) for block in self.blocks]

    def forward(self, ids_BT: Tensor, targets_BT: Tensor, far: Sequence[Far] = ()) -> Any:
        """Loss of each target in nats, [B, T], float32 at least.

        With `far`, pairs (n, w) in tokens, also the far mass of each: {(n, w): [depth, B, H]}, the attention mass on
        keys at distance d >= w, averaged over the last w of the first n queries. What comes after the first n tokens
        changes nothing, so that is what a window of these n tokens alone gives.
        """
        x_BTC: Tensor = self.embedding(ids_BT)
        masses = []
        for block in self.layers:
            x_BTC, mass = block(x_BTC, far)
            masses.append(mass)
        x_NC = self.final_norm(x_BTC).flatten(0, 1)
        losses_BT = token_losses(x_NC, self.embedding.weight, targets_BT.flatten()).view(targets_BT.shape)
        if not far:
            return losses_BT
        return losses_BT, {pair: torch.stack([mass[pair] for mass in masses]) for pair in far}

    def compile_blocks(self) -> None:
        """Let the compiler fuse what surrounds attention in every block, each piece one graph; attention has its own.

        For a GPU: on a CPU sums would be taken in another order.
        """
        for block in self.layers:
            for piece in ("content", "turn", "finish"):
                setattr(block, piece, torch.compile(getattr(block, piece), fullgraph=True, dynamic=False))

    def positional_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and parameter of all that the rotations and log-priors own."""
        return (item for item in self.named_parameters() if _is_positional(item[0]))

    def other_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Name and parameter of everything else: bit-equal at the start in every arm of a size."""
        return (item for item in self.named_parameters() if not _is_positional(item[0]))

    def edit(self, kind: str | None) -> None:
        """Wrap every layer's log-prior in `cap` or `repair` beyond the training length; None takes the wrapping off.

        Raises `UserError` for another kind, or an arm without a log-prior.
        """
        from causal_priors.priors.edits import EDITS, Edit

        if kind is not None and kind not in EDITS:
            raise refuse("is not an edit of a log-prior", key="edit", value=kind, remedy=f"use {' or '.join(EDITS)}")
        for block in self.layers:
            prior = block.log_prior
            if prior is None:
                raise refuse("has no log-prior to edit", key="arm", value=self.arm.key)
            plain = prior.inner if isinstance(prior, Edit) else prior
            block.log_prior = plain if kind is None else EDITS[kind](plain, self.train_length)

    def set_yarn(self, length: int | None, ramp: str = "paper") -> None:
        """Stretch RoPE by YaRN for windows of `length` tokens; None takes it off. Raises `UserError` without RoPE."""
        for block in self.layers:
            if not hasattr(block.rotation, "stretch"):
                raise refuse("has no RoPE for YaRN to stretch", key="arm", value=self.arm.key)
            block.rotation.stretch(length, ramp)

    def position_report(self) -> list[tuple[int, int, str, float]]:
        """(layer, head, quantity, value) of what the log-priors report, such as exponents."""
        return [
            (layer, head, quantity, value)
            for layer, block in enumerate(self.layers)
            if block.log_prior is not None
            for quantity, values in block.log_prior.parameters_report().items()
            for head, value in enumerate(values)
        ]


def _is_positional(name: str) -> bool:
    return ".rotation." in name or ".log_prior." in name
