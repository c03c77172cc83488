"""One entry to attention: picks an implementation from what is asked, and says which.

Shape legend: B batch, H heads, T tokens, D head dim. The choice depends on shapes and on whether a gradient is wanted,
never on timing, so the same call gives the same bits.
"""

import torch
from torch import Tensor

from causal_priors.arms import Transport
from causal_priors.attention import flex, softmax
from causal_priors.attention.kept import kept
from causal_priors.precision import full_precision
from causal_priors.priors.base import BoundPrior

# Up to this many logits in a layer, in numbers, training keeps every weight: 16 MB on a CPU. On one thread there, forward
# and backward of 4 windows of 256 with 4 heads of 16 take 4.5 ms against the fused kernel's 5.8 and, with a bias, 5.6
# against 7.7 of `whole`; 2 windows of 512 with 8 heads of 64 take 36 ms against 59.
KEPT_NUMBERS = {"cpu": 1 << 22, "cuda": 1 << 19}


def choose(q_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None) -> str:
    """Name the implementation `attend` takes: `transport`, `flex`, `kept`, `whole`, `fused` or `blocked`."""
    if transport is not None:
        return "transport"
    if flex.fits(q_BHTD, prior):
        return "flex"
    batch, heads, length, _ = q_BHTD.shape
    trains = torch.is_grad_enabled() and (q_BHTD.requires_grad or (prior is not None and bool(prior.tensors())))
    if trains and batch * heads * length * length <= KEPT_NUMBERS[q_BHTD.device.type]:
        if q_BHTD.device.type == "cpu" and q_BHTD.dtype.itemsize >= 4:
            return "kept"
        if prior is not None:
            return "whole"
    return "fused" if prior is None else "blocked"


def attend(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None
) -> Tensor:
    """Causal attention output [B, H, T, D]; rotation and score scale are already in q and k.

    The precision is that of q, k and v, with biases, logits and sums in float32 at least, under autocast too.
    """
    with full_precision(q_BHTD.device):
        return _attend(q_BHTD, k_BHTD, v_BHTD, prior, transport)


def _attend(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None
) -> Tensor:
    if transport is not None:
        return _transported(q_BHTD, k_BHTD, v_BHTD, prior, transport)
    way = choose(q_BHTD, prior, None)
    if way == "kept":
        return kept(q_BHTD, k_BHTD, v_BHTD, prior)
    if prior is None:
        return softmax.fused(q_BHTD, k_BHTD, v_BHTD)
    if way == "flex":
        return flex.attention(q_BHTD, k_BHTD, v_BHTD, prior)
    if way == "whole":
        return softmax.whole(q_BHTD, k_BHTD, v_BHTD, prior)
    return softmax.blocked(q_BHTD, k_BHTD, v_BHTD, prior)


def _transported(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None, transport: Transport
) -> Tensor:
    # Inside the function, so that the code digest of an arm without transport does not cover the operator.
    from causal_priors.attention.transport import transport_attention

    out_BHTD = transport_attention(
        q_BHTD,
        k_BHTD,
        v_BHTD,
        log_prior=prior,
        strength=transport.strength,
        solver=transport.solver,
        iterations=transport.iterations,
    )
    assert isinstance(out_BHTD, Tensor)
    return out_BHTD
