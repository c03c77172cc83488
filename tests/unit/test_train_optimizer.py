"""The schedule against its closed form, the flat AdamW against torch's own optimiser."""

import math
import subprocess
import sys

import pytest
import torch
from torch import nn

from causal_priors.scale import Size
from causal_priors.train.optimizer import FlatAdamW, learning_rate


def size(steps: int = 300, warmup: float = 0.1, final: float = 0.1) -> Size:
    return Size(64, 2, 4, 64, steps, 1024, 3e-3, warmup, final)


def test_warm_up_is_linear_and_peaks_where_it_ends():
    rates = [learning_rate(size(), step) for step in range(300)]
    assert rates[0] == pytest.approx(3e-3 / 30, rel=1e-12)
    assert rates[14] == pytest.approx(3e-3 / 2, rel=1e-12)
    assert rates[29] == max(rates) == pytest.approx(3e-3, rel=1e-12)


def test_cosine_passes_its_middle_and_ends_at_the_final_fraction():
    # Half of the 270 steps after warm-up: (1 + .1) / 2 of the peak.
    assert learning_rate(size(), 30 + 135 - 1) == pytest.approx(3e-3 * 0.55, rel=1e-12)
    # A third: cos(pi / 3) = 1/2, hence .1 + .9 x .75.
    assert learning_rate(size(), 30 + 90 - 1) == pytest.approx(3e-3 * 0.775, rel=1e-12)
    assert learning_rate(size(), 299) == pytest.approx(3e-4, rel=1e-12)


@pytest.mark.parametrize(("steps", "warmup"), [(5, 0.1), (1, 0.0), (1, 1.0), (10, 1.0), (15258, 0.02)])
def test_every_step_has_a_rate_between_zero_and_the_peak(steps, warmup):
    rates = [learning_rate(size(steps, warmup), step) for step in range(steps)]
    assert all(0 < rate <= 3e-3 * (1 + 1e-12) for rate in rates)


def parameters(seed: int) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    generator = torch.Generator().manual_seed(seed)
    # Odd sizes: the flat buffer pads them, and the padding must not leak into anything.
    others = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(7, 5), (5,), (33, 3), (1,), (4, 4)]]
    positional = [nn.Parameter(torch.randn(shape, generator=generator)) for shape in [(3,), (2, 3)]]
    return others, positional


def test_updates_are_those_of_torch_adamw_with_the_studys_groups():
    others, positional = parameters(0)
    reference, reference_positional = parameters(0)
    optimizer = FlatAdamW(others, positional, position_lr=1 / 3)
    matrices = [p for p in reference if p.ndim == 2]
    vectors = [p for p in reference if p.ndim == 1]
    expected = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
            {"params": reference_positional, "weight_decay": 0.0, "lr": 1e-2 / 3},
        ],
        lr=1e-2,
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=True,
    )
    generator = torch.Generator().manual_seed(1)
    # Gradients above and below norm 1, so that some steps clip and some do not.
    for scale in (0.01, 1.0, 0.05, 3.0):
        for ours, theirs in zip(others + positional, reference + reference_positional, strict=True):
            gradient = scale * torch.randn(ours.shape, generator=generator)
            ours.grad.add_(gradient)
            theirs.grad = gradient.clone()
        norm = optimizer.gradient_norm().item()
        everything = torch.cat([p.grad.flatten() for p in reference + reference_positional]).double()
        assert norm == pytest.approx(everything.norm().item(), rel=1e-6)
        torch.nn.utils.clip_grad_norm_(reference + reference_positional, 1.0)
        optimizer.update(1e-2, norm)
        expected.step()
    for ours, theirs in zip(others + positional, reference + reference_positional, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
        assert not ours.grad.any()


def test_weight_decay_reaches_matrices_only():
    others, positional = parameters(0)
    before = [p.detach().clone() for p in others + positional]
    optimizer = FlatAdamW(others, positional, position_lr=1.0)
    optimizer.update(1e-2, 0.0)
    for after, start in zip(others + positional, before, strict=True):
        decayed = after.ndim == 2 and any(after is p for p in others)
        torch.testing.assert_close(after.detach(), start * (1 - 1e-2 * 0.1) if decayed else start)


def test_a_float32_sum_of_millions_of_squares_stays_exact():
    # One running float32 sum is off by 1e-3 here.
    wide = [nn.Parameter(torch.zeros(5000, 1000))]
    optimizer = FlatAdamW(wide, [], 1.0)
    optimizer.gradients.normal_(generator=torch.Generator().manual_seed(0))
    exact = math.sqrt(optimizer.gradients.double().square().sum().item())
    assert optimizer.gradient_norm().item() == pytest.approx(exact, rel=1e-6)


def test_a_loaded_state_continues_bit_for_bit():
    first, second = (FlatAdamW(*parameters(0), position_lr=1 / 3) for _ in range(2))
    generator = torch.Generator().manual_seed(2)
    gradients = [torch.randn(first.gradients.shape, generator=generator) for _ in range(6)]
    state = {}
    for step, gradient in enumerate(gradients):
        if step == 3:
            state = first.state()
        first.gradients.copy_(gradient)
        first.update(1e-2, 2.0)
    second.load(state)
    for gradient in gradients[3:]:
        second.gradients.copy_(gradient)
        second.update(1e-2, 2.0)
    assert torch.equal(first.values, second.values)
    assert torch.equal(first.square, second.square)


def test_building_it_does_not_import_the_compiler():
    # torch.optim's classes do, which costs every training process more than two seconds.
    program = (
        "import sys, torch; from causal_priors.train.optimizer import FlatAdamW;"
        "o = FlatAdamW([torch.nn.Parameter(torch.ones(4, 4))], [], 1.0); o.update(1e-3, 0.0);"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
