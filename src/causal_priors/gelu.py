"""The tanh form of GELU, as the sigmoid that it is: x s(2 c (x + .044715 x^3)), c = sqrt(2 / pi), s the sigmoid.

On a CPU tanh costs several times what a sigmoid does, and PyTorch's own kernel takes it in both directions. Here it is
taken once; backward uses what forward found. PyTorch's stays on a GPU, where memory counts and not arithmetic, and for
the compiler.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_LINEAR = 2 * math.sqrt(2 / math.pi)
_CUBIC = 0.044715 * _LINEAR


def gelu(x: Tensor) -> Tensor:
    """GELU of every entry, in its tanh form."""
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return F.gelu(x, approximate="tanh")
    out: Tensor = _Gelu.apply(x)  # type: ignore[no-untyped-call]
    return out


class _Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        # The argument of the sigmoid is x (linear + cubic x^2).
        gate = torch.addcmul(x.new_tensor([_LINEAR]), x, x, value=_CUBIC).mul_(x).sigmoid_()
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        # gate + x gate (1 - gate) (linear + 3 cubic x^2); the first product is what a sigmoid's backward computes.
        x, gate = ctx.saved_tensors
        inner = torch.addcmul(x.new_tensor([_LINEAR]), x, x, value=3 * _CUBIC)
        bend = torch.ops.aten.sigmoid_backward(x, gate)
        return torch.addcmul(gate, inner, bend, out=inner).mul_(grads[0])
