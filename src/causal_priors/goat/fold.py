"""A log-prior as extra dimensions of query and key, so that one call of PyTorch's kernel does without a bias.

Shape legend: B batch, H heads, T tokens, D head dim, E extra dims, F frequencies. ALiBi's and Goat's priors are sums of
products of something of i and something of j, up to a constant of the row, which softmax does not see: -m d is m j;
K(i - j) is cos and sin of both positions; u(j) is itself. What is unusual: positions of the slope are counted back from
the last key, so that the numbers stay small where the late rows look, and in half precision none of this is true any
more. A lane then holds integers that do not fit (arms.md B.0.3), and a warning says by how much. Opt-in: only
experiment 0006 evaluates with it, and says so.
"""

import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from causal_priors.priors.base import BoundPrior
from causal_priors.priors.fourier import Goat

# Window lengths in tokens from which folding is faster than the explicit bias, on one core (`bench fold`): below, building
# the wide query and key costs more than the bias does.
FASTER_FROM = {"goat": 1024, "linear": 2048}
# Query, key and value get the same width, a multiple of this, for which the kernel is made.
_MULTIPLE = 8


def faster(prior: BoundPrior | None, length: int) -> bool:
    """Can this prior be folded, and is that faster for windows of `length` tokens?"""
    kind = _kind(prior)
    return kind is not None and length >= FASTER_FROM[kind]


def folded_attention(q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior) -> Tensor:
    """Causal attention output [B, H, T, D] with the prior folded into query and key.

    Warns in half precision, where the prior is wrong by the nats that the warning measures. Raises `ValueError` for a
    prior that does not fold.
    """
    batch, _, length, head_dim = q_BHTD.shape
    query_HTE, key_HTE = lanes(prior, length, q_BHTD.device)
    if q_BHTD.dtype.itemsize < 4:
        worst = lane_error(query_HTE, key_HTE, q_BHTD.dtype)
        text = f"a log-prior folded into {q_BHTD.dtype} is off by up to {worst:.2g} nats at {length} tokens"
        warnings.warn(text, stacklevel=2)
    width = -(-(head_dim + query_HTE.shape[-1]) // _MULTIPLE) * _MULTIPLE
    rest = width - head_dim
    query, key = (
        F.pad(part.to(q_BHTD.dtype), (0, rest - part.shape[-1])).expand(batch, -1, -1, -1)
        for part in (query_HTE, key_HTE)
    )
    wide_q = torch.cat((q_BHTD / math.sqrt(head_dim), query), dim=-1)
    wide_k = torch.cat((k_BHTD, key), dim=-1)
    out = F.scaled_dot_product_attention(wide_q, wide_k, F.pad(v_BHTD, (0, rest)), is_causal=True, scale=1.0)
    return out[..., :head_dim]


def lanes(prior: BoundPrior, length: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Query and key dims [H, T, E] whose products are the log-prior plus a constant of each row.

    In the precision of the prior's parameters. Raises `ValueError` for a prior that does not fold.
    """
    slope_H = _slopes(prior)
    j_T = torch.arange(length, device=device)
    if slope_H is not None:
        back_T = (j_T - (length - 1)).to(slope_H.dtype)
        key_HT = slope_H[:, None] * back_T
        return torch.ones_like(key_HT)[..., None], key_HT[..., None]
    goat = prior.prior
    if not isinstance(goat, Goat):
        raise ValueError(f"{type(goat).__name__} is no sum of products of positions")
    dtype = goat.alpha_HF.dtype
    angle_TF = j_T.double()[:, None] * torch.tensor(goat.frequencies, dtype=torch.float64, device=device)
    cos_TF, sin_TF = angle_TF.cos().to(dtype), angle_TF.sin().to(dtype)
    alpha, beta = goat.alpha_HF[:, None], goat.beta_HF[:, None]
    slope_HT = F.softplus(goat.rho_H)[:, None] * (j_T - (length - 1)).to(dtype)
    lane_HT = goat.key_lane(j_T) + slope_HT
    one_HT1 = torch.ones_like(lane_HT)[..., None]
    query = torch.cat((alpha * cos_TF + beta * sin_TF, alpha * sin_TF - beta * cos_TF, one_HT1), dim=-1)
    waves = torch.cat((cos_TF, sin_TF), dim=-1).expand(len(lane_HT), -1, -1)
    return query, torch.cat((waves, lane_HT[..., None]), dim=-1)


def lane_error(query_HTE: Tensor, key_HTE: Tensor, dtype: torch.dtype) -> float:
    """Largest change in nats of a pair's prior relative to its row's diagonal when the lanes are kept in `dtype`.

    Measured on the last row, where the keys are furthest.
    """

    def last_row(query: Tensor, key: Tensor) -> Tensor:
        row_HT = (query[:, -1:].double() * key.double()).sum(-1)
        return row_HT - row_HT[:, -1:]

    exact, rounded = last_row(query_HTE, key_HTE), last_row(query_HTE.to(dtype), key_HTE.to(dtype))
    return float((exact - rounded).abs().max())


def _kind(prior: BoundPrior | None) -> str | None:
    if prior is None:
        return None
    return "goat" if isinstance(prior.prior, Goat) else "linear" if _slopes(prior) is not None else None


def _slopes(prior: BoundPrior) -> Tensor | None:
    form = prior.distance_form()
    return form[1] if form is not None and form[0] == "linear" else None
