"""What each scale's file says that a run costs, against models built and operations counted."""

import re

import pytest
import torch
from helpers import scale
from torch.utils.flop_counter import FlopCounterMode

from causal_priors.arms import ARMS
from causal_priors.config import scale_file
from causal_priors.model import Transformer


def model_of(of, size):
    return Transformer(of.sizes[size], of.vocabulary, ARMS["rope"], of.sizes[size].train_length, 0)


def flops_of_a_token(of, size):
    """6 per parameter of a model that is built, 12 per layer, channel and key of the window for attention."""
    with torch.device("meta"):
        parameters = sum(parameter.numel() for parameter in model_of(of, size).parameters())
    shape = of.sizes[size]
    return 6 * parameters + 12 * shape.depth * shape.width * shape.train_length


@pytest.mark.parametrize("name", ["nano", "micro", "mini", "paper"])
def test_a_scale_says_what_a_run_costs(name):
    of = scale(name)
    said = re.findall(r"([SC]) ([\d,]+) and ([\d.]+e\d+)", scale_file(name).read_text())
    assert [size for size, _, _ in said] == ["S", "C"]
    for size, tokens, flops in said:
        budget = of.sizes[size].steps * of.sizes[size].tokens_per_step
        assert int(tokens.replace(",", "")) == budget
        assert f"{float(flops):.1e}" == f"{budget * flops_of_a_token(of, size):.1e}"


@pytest.mark.parametrize("size", ["S", "C"])
def test_a_training_step_costs_what_the_rule_of_six_says(size):
    """Counted from the operations of one step. The rule also counts norms and biases, which no matrix product takes."""
    of = scale("micro")
    model, length = model_of(of, size), of.sizes[size].train_length
    ids = torch.randint(of.vocabulary, (2, length + 1), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter:
        torch.autograd.backward(model(ids[:, :-1], ids[:, 1:]).mean())
    vectors = sum(parameter.numel() for parameter in model.parameters() if parameter.ndim == 1)
    assert counter.get_total_flops() == 2 * length * (flops_of_a_token(of, size) - 6 * vectors)
