"""Goat against the package of its authors (`goat-attention` on PyPI), whose attention weights are asked for."""

import pytest
import torch
from prior_cases import bias, make, shaken, softmax_rows
from torch.testing import assert_close

from causal_priors.priors.fourier import Goat

goat = pytest.importorskip("goat", reason="cross-check: goat-attention is not installed (envs/dev.txt)")

HEADS, HEAD_DIM, LENGTH, TRAIN_LENGTH = 3, 32, 48, 40


def theirs(prior=None, **options):
    torch.manual_seed(0)
    module = goat.GoatAttention(
        HEADS * HEAD_DIM,
        HEADS,
        batch_first=True,
        pos_rank=4,
        abs_rank=4,
        training_seq_len=TRAIN_LENGTH,
        prior_init="seeded",
        **options,
    )
    if prior is not None:
        pairs = {
            module.lambda_sym: prior.alpha_HF,
            module.lambda_asym: prior.beta_HF,
            module.key_bias.fc1.weight: prior.hidden_weight_NI,
            module.key_bias.fc1.bias: prior.hidden_bias_N,
            module.key_bias.fc2.weight: prior.out_weight_1N,
            module.key_bias.fc2.bias: prior.out_bias_1,
            module.sink_gain: prior.gain_H,
            module.sink_bump: prior.bump_H,
            module.recency_slope_raw: prior.rho_H,
        }
        with torch.no_grad():
            for target, source in pairs.items():
                target.copy_(source)
    return module


def ours():
    return make(Goat, heads=HEADS, head_dim=HEAD_DIM, train_length=TRAIN_LENGTH)


def test_attention_weights_agree():
    prior = shaken(ours())
    module = theirs(prior)
    x = torch.randn(2, LENGTH, HEADS * HEAD_DIM, generator=torch.Generator().manual_seed(4))
    with torch.no_grad():
        weights = module(x, x, x, is_causal=True, need_weights=True, average_attn_weights=False)[1]
        q, k = (project(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in (module.q_proj, module.k_proj))
        # The package gives up 2R + 1 channels of content for its prior; the study keeps them all (A17).
        kept = HEAD_DIM - 9
        content = q[..., :kept] @ k[..., :kept].mT / kept**0.5
        assert_close(softmax_rows(content + bias(prior, (x, q, k))), weights)


def test_seeded_start_agrees():
    mine, package = ours(), theirs()
    assert_close(mine.rho_H.detach(), package.recency_slope_raw.detach())
    for own, other in (
        (mine.beta_HF, package.lambda_asym),
        (mine.hidden_bias_N, package.key_bias.fc1.bias),
        (mine.out_bias_1, package.key_bias.fc2.bias),
        (mine.gain_H, package.sink_gain),
        (mine.bump_H, package.sink_bump),
    ):
        assert torch.equal(own, other)
    for own, other, std in (
        (mine.alpha_HF, package.lambda_sym, 1e-2),
        (mine.hidden_weight_NI, package.key_bias.fc1.weight, 1e-3),
        (mine.out_weight_1N, package.key_bias.fc2.weight, 1e-3),
    ):
        assert own.shape == other.shape
        assert 0 < own.abs().max() < 4 * std
        assert 0 < other.abs().max() < 4 * std
