"""Attention with a log-prior in one fused kernel of a GPU: PyTorch's FlexAttention, which computes biases pair by pair.

Shape legend: B batch, H heads, T tokens, D head dim. A log-prior hands over a function of one pair (`LogPrior.score`);
the compiler puts it into the kernel, forward and backward, and the gradients of what it looks up are summed there, by
atomic additions: in float32, in no fixed order. Nothing of size T x T is ever held. Logits, biases and sums are float32
also where q, k and v are bfloat16.

What is unusual: a bias of distance alone is looked up in a table [H, T] instead of computed from its H parameters, to
which every pair of a head would have to add its gradient.
"""

from collections.abc import Callable
from functools import cache, lru_cache
from typing import Any

import torch
from torch import Tensor

from causal_priors.attention.softmax import positions
from causal_priors.priors.base import BoundPrior, Score

GPU = "cuda"
# A side of the square tiles of which a whole one can be skipped: FlexAttention's own.
BLOCK = 128
# Triton's matrix products want sides of 16 at least.
LEAST_WIDTH = 16
# Graphs of one process: as many shapes times with and without a gradient.
_GRAPHS = 64
# Not whatever else is installed.
_OPTIONS = {"BACKEND": "TRITON"}


def fits(q_BHTD: Tensor, prior: BoundPrior | None) -> bool:
    """Say whether `attention` is the way: a GPU, at most float32, and a log-prior with a score function."""
    if prior is None or q_BHTD.device.type != GPU or q_BHTD.dtype == torch.float64:
        return False
    return q_BHTD.shape[-1] >= LEAST_WIDTH and score_of(q_BHTD, prior) is not None


def score_of(q_BHTD: Tensor, prior: BoundPrior) -> Score | None:
    """The log-prior's score function for this window, if it has one."""
    return prior.score(positions(0, q_BHTD.shape[2], q_BHTD.device))


def attention(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior) -> Tensor:
    """Causal attention output [B, H, T, D]; a gradient reaches all that the log-prior depends on."""
    bias = score_of(q_BHTD, prior)
    assert bias is not None

    def biased(score: Tensor, b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score + bias(b, h, i, j)

    mask = causal_blocks(q_BHTD.shape[2], q_BHTD.device)
    attend = kernel(q_BHTD.device.type)
    out_BHTD: Tensor = attend(q_BHTD, k_BHTD, v_BHTD, score_mod=biased, block_mask=mask, kernel_options=_OPTIONS)
    return out_BHTD


@cache
def kernel(device: str) -> Callable[..., Any]:
    """FlexAttention, compiled for a GPU; on a CPU, for tests, as PyTorch evaluates it operation by operation."""
    # Inside the function: the import brings the compiler, two seconds that a CPU job is spared.
    import torch._dynamo
    from torch.nn.attention.flex_attention import flex_attention

    if device == "cpu":
        return flex_attention
    # One graph, or an error: what falls out of the kernel would hold T x T numbers.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _GRAPHS)
    compiled: Callable[..., Any] = torch.compile(flex_attention, fullgraph=True, dynamic=False)
    return compiled


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def causal_blocks(length: int, device: torch.device) -> Any:
    """FlexAttention's map of a causal window: the tiles of each row, and which of them count whole.

    Those below the diagonal do, but for the last row of a window that is no multiple of tiles.
    """
    from torch.nn.attention.flex_attention import BlockMask

    count = -(-length // BLOCK)
    tile_N = torch.arange(count, dtype=torch.int32, device=device)
    # Of a row's list of tiles only as many count as the number beside it says.
    some_N, whole_N = torch.ones_like(tile_N), tile_N.clone()
    some_NN, whole_NN = tile_N[:, None].repeat(1, count), tile_N.repeat(count, 1)
    if length % BLOCK:
        some_N[-1], some_NN[-1], whole_N[-1] = count, tile_N, 0
    return BlockMask.from_kv_blocks(
        some_N[None, None],
        some_NN[None, None],
        whole_N[None, None],
        whole_NN[None, None],
        BLOCK_SIZE=BLOCK,
        mask_mod=_is_past,
        seq_lengths=(length, length),
    )


def _is_past(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return i >= j
