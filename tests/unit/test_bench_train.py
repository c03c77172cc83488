"""The throughput benchmark: its table, that its models match in parameters, and what it says where it cannot run."""

import math

import pytest
import torch

from causal_priors.bench import train
from causal_priors.bench.attention import Shape, shape_of
from causal_priors.cli import main
from causal_priors.errors import UserError
from causal_priors.scale import Size

TINY = Shape(Size(width=16, depth=3, heads=2, train_length=8, steps=1, tokens_per_step=16,
                  learning_rate=1e-3, warmup_fraction=0.1, final_fraction=0.1), 40, 2)  # fmt: skip
GPT2, TUNED, DECODER = (name for name in train.CONTENDERS if name != train.OURS)


def test_the_table_takes_the_median_of_the_ratios_of_each_turn():
    # The second turn is slow for both: the ratio of the medians would be 3, not 2.
    rows = {
        train.OURS: train.Row(100, 5.0, [0.010, 0.030, 0.010]),
        GPT2: train.Row(1200, 5.0, [0.015, 0.060, 0.030]),
    }
    lines = train.table("micro", TINY, rows).splitlines()
    assert lines[0] == (
        "S shape of `micro`: width 16, depth 3, 2 heads, vocabulary 40; 2 windows of 8 tokens a step, "
        "3 turns, one thread."
    )
    assert lines[2] == "| model | parameters | step | tokens/s | ours is faster by |"
    assert lines[4:] == [
        f"| {train.OURS} | 100 | 10.0 ms | 1,600 | 1.00 |",
        f"| {GPT2} | 1,200 | 30.0 ms | 533 | 2.00 |",
    ]


@pytest.mark.parametrize("name", list(train.CONTENDERS))
def test_the_models_are_one_in_parameters_but_for_what_the_docstring_says(name):
    if name in (GPT2, TUNED):
        pytest.importorskip("transformers", reason="benchmark: transformers is not installed (envs/dev.txt)")
    if name == DECODER:
        pytest.importorskip("x_transformers", reason="benchmark: x-transformers is not installed (envs/dev.txt)")
    width, depth, length = TINY.size.width, TINY.size.depth, TINY.size.train_length
    model, step = train.CONTENDERS[name](TINY)
    # Four matrices of attention, two of the MLP with four times the width; a bias for each output, two for each norm.
    matrices = depth * (4 + 8) * width**2 + TINY.vocabulary * width
    biases = depth * (4 + 5) * width
    norms = (2 * depth + 1) * 2 * width
    differs = {train.OURS: 0, DECODER: length * width - depth * 4 * width - (2 * depth + 1) * width}
    expected = matrices + biases + norms + differs.get(name, length * width)
    assert sum(parameter.numel() for parameter in model.parameters()) == expected
    before = [parameter.detach().clone() for parameter in model.parameters()]
    first, second = step(), step()
    assert second < first
    assert not any(torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
    if name != DECODER:
        # Initial weights of .02 know nothing.
        assert first == pytest.approx(math.log(TINY.vocabulary), abs=0.1)


def test_a_model_takes_its_turns_in_a_process_of_its_own(monkeypatch, capsys):
    monkeypatch.setattr(train, "CONTENDERS", {train.OURS: train.CONTENDERS[train.OURS]})
    monkeypatch.setattr(train, "PACKAGES", ())
    assert main(["bench", "train", "--parts", "micro", "--turns", "2", "--windows", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    size = shape_of("micro").size
    assert "1 windows of 64 tokens a step, 2 turns" in lines[0]
    assert lines[-1].startswith(f"| {train.OURS} | {size.non_embedding_parameters() + 1024 * size.width:,} | ")
    assert lines[-1].endswith(" | 1.00 |")


def test_a_missing_package_is_named_with_its_remedy(monkeypatch, capfd):
    monkeypatch.setattr(train, "PACKAGES", ("x_transformers_not_there",))
    assert main(["bench", "train"]) == 2
    message = capfd.readouterr().err
    assert "package = 'x-transformers-not-there': is not installed; run `make setup-dev`" in message
    assert len(message.splitlines()) == 1


def test_a_model_that_cannot_be_built_is_named_with_its_reason():
    with train._Child("no such model", "micro", 1) as child, pytest.raises(UserError, match=r"no such model.*failed"):
        child.says()
