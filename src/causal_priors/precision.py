"""Half precision where it is asked for, and nowhere else.

Under autocast the layers' matrix products take bfloat16; residual stream, norms, log-priors, attention logits, losses,
parameters, gradients and moments stay float32. On a CPU none of this is in use and nothing here does anything.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Return a context without autocast on this device."""
    on = torch.is_autocast_enabled(device.type)
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def wide(x: Tensor) -> Tensor:
    """Return the tensor in float32 where it is in half precision, else itself."""
    return x.float() if x.dtype.itemsize < 4 else x


def wide_product(a: Tensor, b: Tensor) -> Tensor:
    """Return a b^T for a [..., R, D] and b [..., S, D] with the same axes before: summed and kept in float32 at least."""
    if a.dtype.itemsize < 4 and a.is_cuda:
        if a.ndim == 2:
            return torch.mm(a, b.T, out_dtype=torch.float32)
        product: Tensor = torch.bmm(a.flatten(0, -3), b.flatten(0, -3).mT, out_dtype=torch.float32)
        return product.view(*a.shape[:-1], b.shape[-2])
    return wide(a) @ wide(b).mT
