"""The whole model without positions against Hugging Face's GPT-2 with its position embedding at zero."""

import pytest
import torch

pytest.importorskip("transformers", reason="cross-check: transformers is not installed (envs/dev.txt)")

from model_cases import VOCABULARY, build, moved, tokens
from transformers import GPT2Config, GPT2LMHeadModel

NAMES = {
    "attention_norm": "ln_1",
    "qkv": "attn.c_attn",
    "out": "attn.c_proj",
    "mlp_norm": "ln_2",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
}


def theirs_of(model):
    config = GPT2Config(
        vocab_size=VOCABULARY, n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_implementation="eager"
    )
    other = GPT2LMHeadModel(config).double().eval()
    state = {"transformer.wpe.weight": torch.zeros(64, 32)}
    for name, value in model.state_dict().items():
        if name.startswith("blocks."):
            _, layer, part, kind = name.split(".")
            transposed = value.T if kind == "weight" and "norm" not in part else value
            state[f"transformer.h.{layer}.{NAMES[part]}.{kind}"] = transposed
        elif name == "embedding.weight":
            state["transformer.wte.weight"] = state["lm_head.weight"] = value
        else:
            state[name.replace("final_norm", "transformer.ln_f")] = value
    other.load_state_dict(state)
    return other


def test_nope_is_gpt2_without_its_position_embedding():
    model = moved(build("nope")).double()
    ids, targets = tokens()
    logits = theirs_of(model)(ids).logits
    expected = torch.nn.functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(model(ids, targets), expected, rtol=0, atol=1e-11)
