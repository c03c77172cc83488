"""What every arm must be, whatever it is: one list, run over the whole table of arms (arms.md B.12.6)."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from model_cases import TRAINED, build, moved, tokens

from causal_priors.arms import ARMS
from causal_priors.attention import dispatch, rows, softmax
from causal_priors.attention.transport import transport_attention
from causal_priors.decode import Decoder

EVERY = list(ARMS)
WITH_PRIOR = [key for key, arm in ARMS.items() if arm.log_prior is not None]
WITH_POSITIONS = [key for key in EVERY if list(build(key).positional_parameters())]

# Far masses asked for at once: pairs (n, w) of a window of 40 tokens.
FAR = [(40, 2), (40, 16), (20, 2), (20, 16), (9, 2)]
# Added to every key alike, it is a constant of each row, and row constants are free: its gradient is 0.
WITHOUT_EFFECT = ("out_bias_1",)


def first_layer(model, length=40):
    """q, k, v and the log-prior of the first layer on random tokens."""
    block = model.layers[0]
    return block.place(*block.content(model.embedding(tokens(length=length)[0])))


@pytest.mark.parametrize("key", EVERY)
def test_no_token_reaches_an_earlier_loss(key):
    model = moved(build(key)).double()
    ids, targets = tokens()
    before = model(ids, targets)
    for changed in (0, 17, 39):
        other = ids.clone()
        other[:, changed] = (other[:, changed] + 1) % 50
        after = model(other, targets)
        torch.testing.assert_close(after[:, :changed], before[:, :changed], rtol=0, atol=1e-11)
        assert (after[:, changed] - before[:, changed]).abs().min() > 1e-6


@pytest.mark.parametrize("key", EVERY)
def test_rows_of_attention_sum_to_one_and_ignore_the_future(key):
    model = moved(build(key)).double()
    q, k, v, prior = first_layer(model)
    weights = rows.attention_rows(q, k, prior, ARMS[key].transport, range(40))
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-11)
    assert (weights >= 0).all()
    assert (weights - weights.tril()).abs().max() == 0
    torch.testing.assert_close(weights @ v, dispatch.attend(q, k, v, prior, ARMS[key].transport), rtol=0, atol=1e-10)


@pytest.mark.parametrize("key", WITH_PRIOR)
def test_bias_is_zero_where_a_token_meets_itself(key):
    """Up to a constant of the row: Goat's key lane is not 0 there, a gate or a distance is."""
    prior = first_layer(moved(build(key)))[3]
    every = torch.arange(40)
    diagonal = prior(every, every).diagonal(dim1=-2, dim2=-1)
    assert diagonal.abs().max() == 0 or key == "goat"
    assert diagonal.isfinite().all()


@pytest.mark.parametrize("key", WITH_PRIOR)
def test_biases_are_float32_and_follow_the_model_to_float64(key):
    model = moved(build(key))
    every = torch.arange(40)
    narrow = first_layer(model)[3](every, every)
    wide = first_layer(copy.deepcopy(model).double())[3](every, every)
    assert (narrow.dtype, wide.dtype) == (torch.float32, torch.float64)
    assert narrow.shape == wide.shape
    assert narrow.shape[1:] == (4, 40, 40)


@pytest.mark.parametrize("key", WITH_POSITIONS)
def test_positional_parameters_are_float32(key):
    assert {parameter.dtype for _, parameter in build(key).positional_parameters()} == {torch.float32}


@pytest.mark.parametrize("key", WITH_POSITIONS)
def test_a_gradient_reaches_every_positional_parameter(key):
    model = build(key).double()
    model(*tokens()).mean().backward()
    for name, parameter in model.positional_parameters():
        if not name.endswith(WITHOUT_EFFECT):
            assert parameter.grad.abs().max() > 1e-12, name


@pytest.mark.parametrize("key", EVERY)
def test_everything_but_position_starts_bit_equal_in_every_arm(key):
    reference, model = dict(build("nope").other_parameters()), dict(build(key).other_parameters())
    assert list(reference) == list(model)
    assert all(torch.equal(reference[name], model[name]) for name in reference)


@pytest.mark.parametrize("key", EVERY)
def test_the_same_seed_gives_the_same_model_and_another_does_not(key):
    first, again, other = (dict(build(key, seed=seed).named_parameters()) for seed in (0, 0, 1))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


@pytest.mark.parametrize("key", EVERY)
def test_blocks_of_rows_equal_the_whole(key, monkeypatch):
    """Losses and all gradients, each implementation cut into the smallest pieces against the one that keeps all weights.

    The pieces differentiate biases by themselves; a gradient counted twice, through gates and parameters, shows here.
    """
    ids, targets = tokens(length=100)
    model = moved(build(key)).double()
    weight = torch.rand(targets.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)

    def measured():
        model.zero_grad()
        losses = model(ids, targets)
        (losses * weight).sum().backward()
        return [losses.detach(), *(p.grad.clone() for p in model.parameters())]

    whole = measured()
    monkeypatch.setattr(softmax, "BLOCK_NUMBERS", {"cpu": 1})
    monkeypatch.setattr(softmax, "BLOCK_ROWS", (7, 7))
    monkeypatch.setattr(dispatch, "KEPT_NUMBERS", {"cpu": 0})
    monkeypatch.setattr("causal_priors.losses.LOGIT_NUMBERS", 50 * 9)
    for name, expected, found in zip(["losses", *dict(model.named_parameters())], whole, measured(), strict=True):
        torch.testing.assert_close(
            found, expected, rtol=1e-8, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


@pytest.mark.parametrize("key", EVERY)
def test_far_mass_is_what_the_rows_say(key, monkeypatch):
    monkeypatch.setattr(softmax, "BLOCK_NUMBERS", {"cpu": 1})
    monkeypatch.setattr(softmax, "BLOCK_ROWS", (7, 7))
    model = moved(build(key)).double()
    ids, targets = tokens()
    losses, mass = model(ids, targets, far=FAR)
    torch.testing.assert_close(losses, model(ids, targets), rtol=0, atol=1e-12)
    q, k, _, prior = first_layer(model)
    weights = rows.attention_rows(q, k, prior, ARMS[key].transport, range(40))
    for n, w in FAR:
        assert mass[n, w].shape == (2, 2, 4)
        each = [weights[:, :, i, : max(0, i - w + 1)].sum(-1) for i in range(n - w, n)]
        torch.testing.assert_close(mass[n, w][0], sum(each) / w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("key", EVERY)
def test_a_window_says_all_about_the_windows_it_begins_with(key):
    model = moved(build(key)).double()
    ids, targets = tokens()
    losses, mass = model(ids, targets, far=[(n, w) for n in (10, 20, 40) for w in (2, 16)])
    for n in (10, 20):
        alone, far = model(ids[:, :n], targets[:, :n], far=[(n, 2), (n, 16)])
        torch.testing.assert_close(alone, losses[:, :n], rtol=0, atol=1e-10)
        for pair, expected in far.items():
            torch.testing.assert_close(mass[pair], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("key", EVERY)
def test_far_mass_of_a_window_that_is_no_longer_than_w_is_zero(key):
    mass = build(key)(*tokens(length=16), far=[(16, 16)])[1]
    assert mass[16, 16].abs().max() == 0


@pytest.mark.parametrize("kind", ["cap", "repair"])
@pytest.mark.parametrize("key", WITH_PRIOR)
def test_edits_change_losses_beyond_the_training_length_only(key, kind):
    model = moved(build(key)).double().requires_grad_(False)
    ids, targets = tokens(length=64)
    before = model(ids, targets)
    model.edit(kind)
    after = model(ids, targets)
    within = slice(0, TRAINED + 1)
    if ARMS[key].transport is None:
        assert torch.equal(after[:, within], before[:, within])
    else:
        # The operator adds a fused distance form and an edited bias by different instructions.
        torch.testing.assert_close(after[:, within], before[:, within], rtol=0, atol=1e-10)
    assert (after[:, TRAINED + 1 :] - before[:, TRAINED + 1 :]).abs().max() > 1e-9
    model.edit(None)
    assert torch.equal(model(ids, targets), before)


@pytest.mark.parametrize("key", EVERY)
def test_decoding_token_by_token_equals_the_full_forward_pass(key):
    model = moved(build(key)).double()
    ids, targets = tokens(length=24)
    decoder = Decoder(model)
    logits = torch.stack([decoder.step(ids[:, i]) for i in range(24)], dim=1)
    losses = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape)
    torch.testing.assert_close(losses, model(ids, targets), rtol=0, atol=1e-9)


def plain_attention(q, k, v, prior):
    """The oracle: one line of mathematics in the dtype of its inputs, no kernel, no blocks."""
    length = q.shape[2]
    every = torch.arange(length)
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if prior is not None:
        logits = logits + prior(every, every)
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    return logits.masked_fill(future, -torch.inf).softmax(-1) @ v


def errors_of_float32(key, attentions, *, batch, length, gradient):
    """Norm of the error against float64 in the output, and in the gradient, of each float32 attention."""
    model = moved(build(key, width=16, heads=2, depth=1))
    x = torch.randn(batch, length, 16, generator=torch.Generator().manual_seed(1))
    block = model.layers[0]

    def outcome(block, x, attention):
        x = x.clone().requires_grad_(gradient)
        with torch.set_grad_enabled(gradient):
            out = attention(*block.place(*block.content(x)))
            found = [out, torch.autograd.grad(out.square().sum(), x)[0]] if gradient else [out]
        return [part.detach().double() for part in found]

    exact = outcome(copy.deepcopy(block).double(), x.double(), plain_attention)
    found = [outcome(block, x, attention) for attention in attentions]
    return [[(part - truth).norm().item() for part, truth in zip(parts, exact, strict=True)] for parts in found]


def dispatched(q, k, v, prior):
    return dispatch.attend(q, k, v, prior, None)


def in_blocks(q, k, v, prior):
    return dispatched(q, k, v, prior) if prior is None else softmax.blocked(q, k, v, prior)


SOFTMAX = [key for key in EVERY if ARMS[key].transport is None]


@pytest.mark.parametrize("key", SOFTMAX)
def test_float32_errs_at_most_twice_as_much_as_the_plain_reference(key):
    """In the output and in the gradient. Eight windows: the gradient of a path is what is left of large sums."""
    attentions = (plain_attention, dispatched, in_blocks)
    plain, *ours = errors_of_float32(key, attentions, batch=8, length=200, gradient=True)
    for found in ours:
        assert all(error <= 2 * allowed for error, allowed in zip(found, plain, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("key", SOFTMAX)
def test_float32_errs_no_more_at_4096_tokens(key):
    (plain,), (ours,) = errors_of_float32(key, (plain_attention, dispatched), batch=1, length=4096, gradient=False)
    assert ours <= 2 * plain


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(set(EVERY) - set(SOFTMAX)))
def test_float32_transport_errs_at_most_twice_as_much_as_its_definition_at_4096_tokens(key):
    transport = ARMS[key].transport

    def by_definition(q, k, v, prior):
        return transport_attention(q, k, v, log_prior=prior, strength=transport.strength, impl="reference")

    def dispatched_transport(q, k, v, prior):
        return dispatch.attend(q, k, v, prior, transport)

    block = moved(build(key, width=16, heads=2, depth=1)).layers[0]
    x = torch.randn(1, 4096, 16, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        wide = copy.deepcopy(block).double()
        truth = by_definition(*wide.place(*wide.content(x.double())))
        placed = block.place(*block.content(x))
        plain, ours = ((attend(*placed).double() - truth).norm() for attend in (by_definition, dispatched_transport))
    assert ours <= 2 * plain
