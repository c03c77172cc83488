"""The Triton kernels: against float64 under the interpreter, and compiled for a GPU that need not be there."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch

from causal_priors.attention.transport import DistanceLogPrior, transport_attention
from causal_priors.attention.transport.interface import why_not_triton

WORKER = Path(__file__).parent / "transport_interpreter.py"
NAMES = ("out", "potentials", "dq", "dk", "dv", "dcoefficient")
# length, head dim, strength, distance prior, size of the scores, dtype
QUICK = [
    (1, 16, 0.5, None, 1, torch.float32),
    (17, 16, 0.5, "log", 1, torch.float32),
    (31, 32, 0.95, "linear", 1, torch.float32),
    (65, 64, 0.8, "log", 1, torch.float32),
    (33, 20, 0.0, None, 1, torch.bfloat16),
    (40, 128, 0.75, None, 1, torch.float32),
]
# The last two leave the range in which a block is summed in plain numbers, and go row by row.
SLOW = [
    (130, 16, 0.99, "log", 1, torch.float32),
    (2, 16, 0.05, "linear", 1, torch.float32),
    (100, 64, 0.95, None, 2, torch.float32),
    (33, 16, 0.5, None, 7, torch.float32),
    (33, 16, 0.95, "log", 7, torch.float32),
]


def make(length, width, strength, kind, size, dtype):
    generator = torch.Generator().manual_seed(length)
    q, k, v, dout = (torch.randn(1, 2, length, width, generator=generator).to(dtype) for _ in range(4))
    coefficient = torch.tensor([0.5, 1.25])
    named = {"q": q * size, "k": k * size, "v": v, "dout": dout, "coefficient": coefficient}
    return named | {"strength": strength, "kind": kind}


def evaluate(case, impl, dtype):
    inputs = [case[name].to(dtype).clone().requires_grad_() for name in ("q", "k", "v")]
    prior = None
    if case["kind"] is not None:
        inputs.append(case["coefficient"].to(dtype).clone().requires_grad_())
        prior = DistanceLogPrior(case["kind"], inputs[-1])
    out, a = transport_attention(
        *inputs[:3], log_prior=prior, strength=case["strength"], impl=impl, return_potentials=True
    )
    gradients = torch.autograd.grad(out, inputs, case["dout"].to(dtype))
    return [x.detach().double() for x in (out, a, *gradients)]


def terms(case):
    """Size of the terms behind each result: what one rounding of each amounts to, times 1 / eps."""
    q, k, v, dout = (case[name].double().abs() for name in ("q", "k", "v", "dout"))
    length = q.shape[2]
    eye = torch.eye(length, dtype=torch.float64).expand(*q.shape[:2], -1, -1)
    prior = None if case["kind"] is None else DistanceLogPrior(case["kind"], case["coefficient"].double())
    plan = transport_attention(case["q"].double(), case["k"].double(), eye, log_prior=prior, strength=case["strength"])
    pulls, scale = plan * (dout @ v.mT), q.shape[-1] ** -0.5
    sizes = [plan @ v, torch.ones(1, 2, length, dtype=torch.float64), pulls @ k * scale, pulls.mT @ q * scale]
    sizes.append(plan.mT @ dout)
    if prior is not None:
        every = torch.arange(length)
        shape = prior(every, every) / -case["coefficient"].double()[None, :, None, None]
        sizes.append((pulls * shape).sum((0, 2, 3)))
    return sizes


def complaints(case, found):
    truth, plain = (evaluate(case, "reference", dtype) for dtype in (torch.float64, torch.float32))
    stored = torch.finfo(case["q"].dtype).eps
    for name, mine, exact, rough, size in zip(NAMES, found, truth, plain, terms(case), strict=False):
        error, budget = (float((x.double() - exact).norm()) for x in (mine, rough))
        epsilon = torch.finfo(torch.float32).eps if name in ("potentials", "dcoefficient") else stored
        budget = 2 * budget + epsilon * float(size.norm())
        if not error <= budget:
            yield f"{name}: {error:.2e} > {budget:.2e}"


def interpreted(folder, cases):
    torch.save(cases, folder / "cases.pt")
    done = subprocess.run(
        [sys.executable, str(WORKER), str(folder / "cases.pt"), str(folder / "out.pt")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return torch.load(folder / "out.pt")


@pytest.fixture(scope="module")
def quick_results(tmp_path_factory):
    cases = [make(*row) for row in QUICK]
    return list(zip(cases, interpreted(tmp_path_factory.mktemp("triton"), cases), strict=True))


@pytest.mark.parametrize("index", range(len(QUICK)), ids=lambda index: "-".join(map(str, QUICK[index])))
def test_kernels_stay_within_the_error_budget(index, quick_results):
    case, found = quick_results[index]
    assert [found[0].dtype, found[2].dtype] == [case["q"].dtype] * 2
    assert not list(complaints(case, found))


@pytest.mark.slow
@pytest.mark.parametrize("row", SLOW, ids=lambda row: "-".join(map(str, row)))
def test_kernels_stay_within_the_error_budget_in_hard_cases(row, tmp_path):
    case = make(*row)
    assert not list(complaints(case, interpreted(tmp_path, [case])[0]))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["forward", "backward"])
def test_kernels_compile_and_use_no_atomics(name):
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(import_module(f"causal_priors.attention.transport.kernels.{name}"), name)
    constants = {"KIND": 1, "R": 16, "BN": 64, "BD": 64}
    kinds = {"scale": "fp32", "strength": "fp32"} | dict.fromkeys(constants, "constexpr")
    signature = {
        argument: "*fp32" if argument.endswith("_ptr") else kinds.get(argument, "i32") for argument in kernel.arg_names
    }
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 1})
    assert not re.search(r"\s(atom|red)\.", compiled.asm["ptx"])


def test_what_the_kernels_do_not_take_is_refused():
    x = torch.zeros(1, 2, 8, 16)
    assert why_not_triton(x, x, None) is None
    assert why_not_triton(x, x, DistanceLogPrior("log", torch.ones(2))) is None
    for q, v, prior, reason in (
        (x.double(), x.double(), None, "float32"),
        (x[..., :8], x[..., :8], None, "head dim"),
        (x, x[..., :8], None, "one head dim"),
        (x, x, torch.zeros(8, 8), "distance alone"),
    ):
        assert reason in why_not_triton(q, v, prior)
        with pytest.raises(ValueError, match=reason):
            transport_attention(q, q, v, log_prior=prior, strength=0.5, impl="triton")
