"""Runs the Triton kernels under the interpreter, which has to be chosen before triton is imported: hence a program.

Usage: python transport_interpreter.py CASES OUT. CASES: a torch file with a list of dictionaries (q, k, v, dout, strength,
kind, coefficient); OUT: the results, in the same order.
"""

import os

os.environ["TRITON_INTERPRET"] = "1"

import sys
import warnings

import torch

from causal_priors.attention.transport import DistanceLogPrior, transport_attention

# NumPy, under the interpreter, warns of infinities that the kernels mask.
warnings.filterwarnings("ignore", category=RuntimeWarning)


def run(case):
    """Output, potentials and gradients of one case."""
    inputs = [case[name].requires_grad_() for name in ("q", "k", "v")]
    prior = None
    if case["kind"] is not None:
        inputs.append(case["coefficient"].requires_grad_())
        prior = DistanceLogPrior(case["kind"], inputs[-1])
    out, a = transport_attention(
        *inputs[:3], log_prior=prior, strength=case["strength"], impl="triton", return_potentials=True
    )
    return [out.detach(), a, *torch.autograd.grad(out, inputs, case["dout"])]


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.save([run(case) for case in torch.load(sys.argv[1])], sys.argv[2])
