"""RoPE, YaRN (its reference code's ramp and temperature) and ALiBi slopes against Hugging Face `transformers`."""

import pytest
import torch
from torch.testing import assert_close

from causal_priors.attention.rotary import RoPE, rope_frequencies, yarn_frequencies, yarn_temperature
from causal_priors.priors.base import Geometry
from causal_priors.priors.formulas import alibi_slopes

pytest.importorskip("transformers", reason="cross-check: transformers is not installed (envs/dev.txt)")

from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb


def llama(head_dim, length, **rope):
    return LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        max_position_embeddings=length,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0, **rope},
    )


@pytest.mark.parametrize("head_dim", [16, 64])
def test_rope_rotates_as_llama_does(head_dim):
    q, k = torch.randn(2, 1, 2, 50, head_dim, generator=torch.Generator().manual_seed(0))
    cos, sin = LlamaRotaryEmbedding(llama(head_dim, 50))(q, torch.arange(50)[None])
    rope = RoPE(Geometry(2 * head_dim, 2, head_dim, 50), torch.Generator())
    for mine, theirs in zip((rope(q), rope(k)), apply_rotary_pos_emb(q, k, cos, sin), strict=True):
        assert_close(mine, theirs)


@pytest.mark.parametrize(
    ("head_dim", "length", "stretch"),
    [(64, 1024, 4.0), (64, 512, 2.0), (32, 512, 8.0), (128, 1024, 2.0), (16, 64, 8.0)],
)
def test_yarn_frequencies_and_temperature(head_dim, length, stretch):
    config = llama(
        head_dim,
        int(length * stretch),
        rope_type="yarn",
        factor=stretch,
        original_max_position_embeddings=length,
        beta_fast=32.0,
        beta_slow=1.0,
    )
    theirs, temperature = ROPE_INIT_FUNCTIONS["yarn"](config, torch.device("cpu"))
    mine = yarn_frequencies(rope_frequencies(head_dim, 10_000.0), 10_000.0, length, stretch, ramp="code")
    assert_close(torch.tensor(mine), theirs)
    assert yarn_temperature(stretch) == pytest.approx(temperature, rel=1e-12)


@pytest.mark.parametrize("heads", [1, 2, 4, 6, 8, 12, 16, 20])
def test_alibi_slopes(heads):
    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    assert_close(torch.tensor(alibi_slopes(heads)), theirs)
