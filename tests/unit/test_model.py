"""The transformer: its sizes, its loss, its reductions between arms, and what it refuses."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from helpers import scale
from model_cases import TRAINED, VOCABULARY, build, moved, tokens
from prior_cases import make

from causal_priors import losses as loss_head
from causal_priors.arms import ARMS, Arm, Part, Transport
from causal_priors.attention import dispatch
from causal_priors.attention.rows import attention_rows
from causal_priors.attention.softmax import blocked, whole
from causal_priors.errors import UserError
from causal_priors.losses import token_losses
from causal_priors.model import Transformer, log_n_scale
from causal_priors.priors.base import BoundPrior
from causal_priors.priors.distance import ALiBi


def losses_of(model):
    return model.double()(*tokens()).detach()


@pytest.mark.parametrize(
    ("size", "arm", "expected"), [("S", "rope", 25_220_096), ("C", "rope", 99_231_744), ("C", "cable", 99_490_128)]
)
def test_paper_sizes_have_the_source_s_parameter_counts(size, arm, expected):
    paper = scale("paper")
    with torch.device("meta"):
        model = Transformer(paper.sizes[size], paper.vocabulary, ARMS[arm], paper.sizes[size].train_length, 0)
    counts = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert counts.pop("embedding.weight") == 50_304 * paper.sizes[size].width
    assert sum(counts.values()) == expected
    others = sum(parameter.numel() for name, parameter in model.other_parameters() if name != "embedding.weight")
    assert others == paper.sizes[size].non_embedding_parameters()


@pytest.mark.parametrize("arm", ["rope", "alibi", "log", "log-gt1", "log-lt1", "cable", "cable-lr"])
def test_every_arm_of_the_confirmation_has_what_the_source_says(arm):
    paper = scale("paper")
    with torch.device("meta"):
        model = Transformer(paper.sizes["C"], paper.vocabulary, ARMS[arm], paper.sizes["C"].train_length, 0)
    count = sum(parameter.numel() for name, parameter in model.named_parameters() if name != "embedding.weight")
    # "99.2-99.5M"
    assert 99.2 <= round(count / 1e6, 1) <= 99.5


@pytest.mark.parametrize(
    ("arm", "per_layer"),
    [("rope", 0), ("nope", 0), ("rope-logn", 0), ("alibi", 0), ("log-fixed", 0), ("log", 12), ("log-gt1", 12),
     ("log-margin-t020", 12), ("kerple", 24), ("grape-m", 32), ("ot-75", 0), ("alibi-ot", 0)],
)  # fmt: skip
def test_positional_parameters_at_the_sizes_of_the_literature(arm, per_layer):
    model = build(arm, width=768, heads=12, depth=1, vocabulary=8)
    assert sum(parameter.numel() for _, parameter in model.positional_parameters()) == per_layer


def test_initial_weights_follow_the_recipe():
    model = build("log", width=64, depth=3, vocabulary=400)
    for name, parameter in model.other_parameters():
        if parameter.ndim == 1:
            expected = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            assert (parameter == expected).all(), name
        else:
            std = 0.02 / math.sqrt(6) if ".out." in name or ".down." in name else 0.02
            # Standard error of a standard deviation: std / sqrt(2 n); six of them.
            assert parameter.std().item() == pytest.approx(std, abs=6 * std / math.sqrt(2 * parameter.numel())), name


def test_position_draws_from_a_stream_of_its_own():
    """Positional initial values depend on the seed, and are not the start of the weights' stream."""
    first, other = (dict(build("kerple", seed=seed).positional_parameters()) for seed in (0, 1))
    assert all(not torch.equal(first[name], other[name]) for name in first)
    content = torch.rand(4, generator=torch.Generator().manual_seed(0))
    drawn = F.softplus(first["blocks.0.log_prior.power_raw_H"]) / 2
    assert not torch.allclose(drawn, content, atol=1e-3)


def test_initial_loss_is_that_of_knowing_nothing():
    """Residual weights near 0: logits scatter by .02 sqrt(width) = .16, so the loss is ln V + half of its square."""
    losses = build("rope", width=64, vocabulary=1024)(*tokens(batch=8, vocabulary=1024))
    assert losses.shape == (8, 40)
    # Each loss scatters by .16; five standard errors of the mean of 320.
    assert losses.mean().item() == pytest.approx(math.log(1024) + 0.02**2 * 64 / 2, abs=5 * 0.16 / math.sqrt(320))


@pytest.mark.parametrize("pieces", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_and_gradients_are_those_of_cross_entropy(dtype, pieces, monkeypatch):
    monkeypatch.setattr(loss_head, "LOGIT_NUMBERS", 80 * 30 // pieces)
    generator = torch.Generator().manual_seed(0)
    x, embedding = (torch.randn(n, 16, generator=generator, dtype=torch.float64) for n in (30, 80))
    targets = torch.randint(80, (30,), generator=generator)
    weight = torch.rand(30, generator=generator, dtype=torch.float64)

    def outcome(head, dtype):
        leaves = [part.to(dtype).clone().requires_grad_() for part in (x, embedding)]
        losses = head(*leaves)
        (losses * weight).sum().backward()
        return [losses.detach().double(), *(leaf.grad.double() for leaf in leaves)]

    def plain(x, embedding):
        return F.cross_entropy(x @ embedding.T, targets, reduction="none")

    exact = outcome(plain, torch.float64)
    ours = outcome(lambda x, embedding: token_losses(x, embedding, targets), dtype)
    reference = outcome(plain, torch.float32)
    for truth, found, float32 in zip(exact, ours, reference, strict=True):
        allowed = 2 * (float32 - truth).norm() if dtype == torch.float32 else 1e-12 * truth.norm()
        assert (found - truth).norm() <= allowed


def test_losses_can_be_differentiated_twice_over_one_graph():
    """The slopes overwrite what forward kept: a second walk must not see the first one's."""
    x, embedding = torch.randn(6, 8, requires_grad=True), torch.randn(20, 8, requires_grad=True)
    losses = token_losses(x, embedding, torch.arange(6)).sum()
    first = torch.autograd.grad(losses, (x, embedding), retain_graph=True)
    second = torch.autograd.grad(losses, (x, embedding))
    torch.testing.assert_close(first, second)


def test_an_unlikely_target_has_a_finite_loss():
    x = torch.tensor([[300.0]], requires_grad=True)
    embedding = torch.tensor([[1.0], [-1.0]])
    losses = token_losses(x, embedding, torch.tensor([1]))
    losses.sum().backward()
    assert losses.item() == 600.0
    assert x.grad.item() == pytest.approx(2.0)


def without(key, **changes):
    """A model with the weights of arm `key` and another row."""
    model = moved(build(key))
    other = build(replace(ARMS[key], key="other", **changes))
    other.load_state_dict({name: value for name, value in model.state_dict().items() if name in other.state_dict()})
    return other


def filled(model, name, value):
    with torch.no_grad():
        for block in model.layers:
            getattr(block.log_prior, name).fill_(value)
    return model


@pytest.mark.parametrize(
    ("arm", "name", "value"), [("log", "theta_H", -300.0), ("log-norope", "theta_H", -300.0), ("alibi", "slope_H", 0.0)]
)
def test_a_vanishing_log_prior_is_none(arm, name, value):
    torch.testing.assert_close(
        losses_of(filled(moved(build(arm)), name, value)), losses_of(without(arm, log_prior=None)), rtol=0, atol=1e-12
    )


def test_rope_without_frequencies_is_no_position():
    model = moved(build("rope"))
    for block in model.layers:
        block.rotation.frequencies = (0.0,) * len(block.rotation.frequencies)
    torch.testing.assert_close(losses_of(model), losses_of(moved(build("nope"))), rtol=0, atol=1e-12)


def test_learned_frequencies_start_as_rope():
    """Apart from lambda being stored in float32: its last place, over 16, times 39 tokens."""
    rope, learned = build("rope"), build("grape-m")
    torch.testing.assert_close(losses_of(learned), losses_of(rope), rtol=0, atol=39 * 2.0**-18 / 16)


def test_transport_without_strength_is_softmax():
    strengthless = build(replace(ARMS["alibi-ot"], transport=Transport(0.0)))
    torch.testing.assert_close(losses_of(moved(strengthless)), losses_of(moved(build("alibi"))), rtol=0, atol=1e-10)


def test_arms_of_one_size_differ():
    """No two rows are the same function, except where they differ in training only."""
    found = {key: losses_of(moved(build(key))) for key in ARMS}
    for i, first in enumerate(found):
        for second in list(found)[i + 1 :]:
            same = (found[first] - found[second]).abs().max() < 1e-9
            assert same == ({first, second} == {"cable", "cable-lr"}), (first, second)


@pytest.mark.parametrize(
    ("trained", "expected"),
    [(4, [0.174878, 0.174878, 0.174878, 0.475367]), (16, [0.215113, 0.215113, 0.215113, 0.354661])],
)
def test_golden_log_n_row(trained, expected):
    q = torch.ones(1, 1, 4, 1) * log_n_scale(4, trained, torch.ones(()))
    k = torch.tensor([0.0, 0.0, 0.0, 1.0])[None, None, :, None]
    assert attention_rows(q, k, None, None, range(3, 4)).flatten().tolist() == pytest.approx(expected, abs=5e-7)


def test_log_n_multiplies_queries_row_by_row():
    x = torch.randn(1, 30, 32, generator=torch.Generator().manual_seed(0))
    (q, k, v, _), (scaled_q, same_k, same_v, _) = (
        block.place(*block.content(x)) for block in (build(arm).layers[0] for arm in ("rope", "rope-logn"))
    )
    assert torch.equal(k, same_k)
    assert torch.equal(v, same_v)
    factors = torch.tensor([math.log(i + 1) / math.log(TRAINED) for i in range(30)])
    torch.testing.assert_close(scaled_q, q * factors[:, None])


def test_log_n_scales_content_and_never_the_log_prior():
    """Queries of zero leave the log-prior alone to speak: the rows are its own softmax."""
    block = moved(build("log-logn")).layers[0]
    normed, qkv = block.content(torch.randn(1, 12, 32))
    _, k, _, prior = block.place(normed, qkv)
    weights = attention_rows(torch.zeros_like(k), k, prior, None, range(11, 12))[0, :, 0]
    alpha = block.log_prior.exponent_H()[:, None]
    expected = (1 + torch.arange(11, -1, -1.0)) ** -alpha
    torch.testing.assert_close(weights, expected / expected.sum(-1, keepdim=True))


def test_log_n_is_one_at_the_training_length_and_turns_off_the_first_row():
    factor = log_n_scale(128, 64, torch.ones((), dtype=torch.float64))[:, 0]
    assert factor[0] == 0
    assert factor[63] == 1
    assert factor[127].item() == pytest.approx(7 / 6)


def test_yarn_changes_rope_beyond_the_training_length_only():
    model = build("rope").double()
    plain = losses_of(model)
    model.set_yarn(TRAINED)
    assert torch.equal(losses_of(model), plain)
    model.set_yarn(40)
    paper = losses_of(model)
    model.set_yarn(40, ramp="code")
    code = losses_of(model)
    model.set_yarn(None)
    assert torch.equal(losses_of(model), plain)
    assert not torch.equal(paper, plain)
    assert not torch.equal(paper, code)


def test_far_mass_of_uniform_attention_by_hand():
    """Without queries every visible key weighs the same: row i has (i + 1 - w) / (i + 1) of it at distance >= w."""
    model = build("nope").double()
    with torch.no_grad():
        for block in model.layers:
            block.qkv.weight[:32].zero_()
    mass = model(*tokens(length=32), far=[(32, 4), (32, 16), (32, 32)])[1]
    for w, expected in (
        (4, sum((n - 4) / n for n in range(29, 33)) / 4),
        (16, sum((n - 16) / n for n in range(17, 33)) / 16),
    ):
        assert mass[32, w].flatten().tolist() == pytest.approx([expected] * 16, rel=1e-12)
    assert mass[32, 32].abs().max() == 0


def test_position_report_names_layer_and_head():
    report = build("log").position_report()
    assert [row[:3] for row in report] == [(layer, head, "exponent") for layer in (0, 1) for head in range(4)]
    assert [value for *_, value in report[:4]] == pytest.approx([0.5, 0.721125, 1.040042, 1.5], abs=1e-6)
    assert build("rope").position_report() == []


@pytest.mark.parametrize("arm", [key for key, row in ARMS.items() if row.log_prior is None])
def test_edit_refuses_an_arm_without_a_log_prior(arm):
    with pytest.raises(UserError, match=rf"'{arm}': has no log-prior"):
        build(arm).edit("cap")


def test_edit_refuses_an_unknown_kind():
    with pytest.raises(UserError, match=r"edit = 'clip'.*cap or repair"):
        build("log").edit("clip")


@pytest.mark.parametrize("arm", ["nope", "log-norope", "cable", "grape-m"])
def test_yarn_refuses_an_arm_without_rope(arm):
    with pytest.raises(UserError, match=rf"'{arm}': has no RoPE"):
        build(arm).set_yarn(64)


def test_a_margin_arm_refuses_to_be_built_without_its_margin():
    with pytest.raises(UserError, match=r"'log-margin-t020': needs a margin"):
        build("log-margin-t020", margins={"log-margin-t050": 0.5})


def test_margins_reach_their_arm():
    for key, margin in (("log-margin-t050", 0.5), ("log-margin-t005", 1.1)):
        assert [value for *_, value in build(key).position_report()] == pytest.approx([1.5 + margin] * 8)


def test_any_rotation_goes_with_any_log_prior_and_transport():
    row = Arm(
        "composed",
        "GRAPE-M with CABLE under transport and log-n",
        rotation=ARMS["grape-m"].rotation,
        log_n=True,
        log_prior=Part("causal_priors.priors.path:Cable"),
        transport=Transport(0.5),
    )
    model = build(row)
    model(*tokens()).mean().backward()
    assert all(parameter.grad.abs().max() > 0 for _, parameter in model.positional_parameters())


@pytest.mark.parametrize(
    ("arm", "shape", "trains", "expected"),
    [
        ("rope", (16, 4, 64, 16), True, "kept"),
        ("rope", (16, 4, 64, 16), False, "fused"),
        ("rope", (32, 4, 512, 16), True, "fused"),
        ("log", (16, 4, 64, 16), True, "kept"),
        ("log", (32, 4, 512, 16), True, "blocked"),
        ("log", (16, 4, 64, 16), False, "blocked"),
        ("alibi", (1, 4, 64, 16), True, "kept"),
        ("ot-50", (1, 4, 64, 16), True, "transport"),
        ("alibi-ot", (1, 4, 64, 16), False, "transport"),
    ],
)
def test_dispatch_says_what_it_takes(arm, shape, trains, expected):
    prior = build(arm).layers[0].log_prior
    bound = None if prior is None else BoundPrior(prior)
    with torch.set_grad_enabled(trains):
        assert dispatch.choose(torch.zeros(shape, requires_grad=trains), bound, ARMS[arm].transport) == expected


def test_training_after_evaluation_in_inference_mode():
    """What inference mode computes once and remembers must still serve training."""
    model = build("log-logn", train_length=17)
    ids, targets = tokens(length=67)
    with torch.inference_mode():
        model(ids, targets, far=[(67, 2)])
    model(ids, targets).mean().backward()
    assert model.layers[0].log_prior.theta_H.grad.abs().max() > 0


@pytest.mark.parametrize("arm", ["rope", "rope-logn", "log", "kerple", "cable", "grape-m", "ot-50"])
def test_bfloat16_autocast_trains(arm):
    """Losses stay float32, and every gradient arrives."""
    model = moved(build(arm))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        losses = model(*tokens())
    assert losses.dtype == torch.float32
    losses.mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("path", [whole, blocked])
def test_a_bias_is_never_rounded_to_half_precision(path):
    """In bfloat16, 1000 and 1001 are one number; queries of zero leave the bias alone to decide."""
    length = 300
    prior = BoundPrior(make(ALiBi, heads=4, head_dim=8))
    v = torch.randn(1, 4, length, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    q = torch.zeros_like(v)
    exact = path(q.double(), q.double(), v.double(), prior)
    # Weights and outputs are rounded once each, to 8 bits.
    assert (path(q, q, v, prior).double() - exact).abs().max() <= 2 * 2.0**-9 * v.abs().max()


def test_vocabulary_is_as_asked():
    assert build("rope").embedding.weight.shape == (VOCABULARY, 32)
