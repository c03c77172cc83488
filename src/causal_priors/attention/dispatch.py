"""One entry to attention: picks an implementation from what is asked, and says which.

Shape legend: B batch, H heads, T tokens, D head dim. The choice depends on shapes and on whether a gradient is wanted,
never on timing, so the same call gives the same bits.
"""

import torch
from torch import Tensor

from causal_priors.arms import Transport
from causal_priors.attention import softmax
from causal_priors.priors.base import BoundPrior

# Up to this many logits in a layer the plain path trains faster than row blocks: at 2^19 (8 windows of 128, 4 heads)
# 5.1 against 7.3 ms, at 2^20 (4 of 256) 15 against 12 ms, on one thread of a CPU.
WHOLE_NUMBERS = 1 << 19


def choose(q_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None) -> str:
    """Name the implementation `attend` takes: `transport`, `fused`, `whole` or `blocked`."""
    if transport is not None:
        return "transport"
    if prior is None:
        return "fused"
    batch, heads, length, _ = q_BHTD.shape
    trains = torch.is_grad_enabled() and (q_BHTD.requires_grad or bool(prior.tensors()))
    return "whole" if trains and batch * heads * length * length <= WHOLE_NUMBERS else "blocked"


def attend(
    q_BHTD: Tensor, k_BHTD: Tensor, v_BHTD: Tensor, prior: BoundPrior | None, transport: Transport | None
) -> Tensor:
    """Causal attention output [B, H, T, D]; rotation and score scale are already in q and k."""
    if transport is not None:
        return _transported(q_BHTD, k_BHTD, v_BHTD, prior, transport)
    if prior is None:
        return softmax.fused(q_BHTD, k_BHTD, v_BHTD)
    if choose(q_BHTD, prior, None) == "whole":
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
