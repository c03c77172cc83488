"""Cap and repair against their definitions, pair by pair, for every arm that has a log-prior."""

import pytest
import torch
from prior_cases import bias, make, past, shaken, window

from causal_priors.arms import ARMS
from causal_priors.priors.base import BoundPrior, LogPrior, PriorContext
from causal_priors.priors.distance import ALiBi, LogDistance
from causal_priors.priors.edits import Cap, Repair

LENGTH, TRAINED = 40, 16
WITH_PRIOR = [key for key, arm in ARMS.items() if arm.log_prior is not None]


def prior_of(key, dtype=torch.float32):
    part = ARMS[key].log_prior
    options = {name: value for name, value in part.options.items() if name != "tolerance"}
    return shaken(make(part.load(), train_length=TRAINED, **options)).to(dtype)


def near():
    every = torch.arange(LENGTH)
    return every[:, None] - every <= TRAINED


@pytest.mark.parametrize("edit", [Cap, Repair])
@pytest.mark.parametrize("key", WITH_PRIOR)
def test_pairs_within_the_training_length_stay_bit_for_bit_and_others_move(key, edit):
    inner = prior_of(key)
    inputs = window(inner, LENGTH)
    before, after = past(bias(inner, inputs)), past(bias(edit(inner, TRAINED), inputs))
    assert torch.equal(torch.where(near(), before, 0), torch.where(near(), after, 0))
    assert not torch.equal(before, after)


@pytest.mark.parametrize("key", WITH_PRIOR)
def test_cap_is_the_bias_at_the_nearest_allowed_key(key):
    inner = prior_of(key, torch.float64)
    inputs = window(inner, LENGTH, dtype=torch.float64)
    before, after = bias(inner, inputs), bias(Cap(inner, TRAINED), inputs)
    for i in range(LENGTH):
        nearest = [max(j, i - TRAINED) for j in range(i + 1)]
        # Rounding apart: a path sum up to one column may be formed in another order in another block.
        torch.testing.assert_close(after[..., i, : i + 1], before[..., i, nearest], rtol=0, atol=1e-12)


@pytest.mark.parametrize("key", WITH_PRIOR)
def test_repair_takes_off_one_nat_per_training_length_beyond_it(key):
    inner = prior_of(key, torch.float64)
    inputs = window(inner, LENGTH, dtype=torch.float64)
    moved = bias(Repair(inner, TRAINED), inputs) - bias(inner, inputs)
    for i in range(LENGTH):
        expected = torch.tensor([-max(0, i - j - TRAINED) / TRAINED for j in range(i + 1)], dtype=torch.float64)
        torch.testing.assert_close(moved[..., i, : i + 1], expected.expand_as(moved[..., i, : i + 1]))


@pytest.mark.parametrize("edit", [Cap, Repair])
@pytest.mark.parametrize("key", WITH_PRIOR)
@pytest.mark.parametrize(
    ("rows", "columns"),
    [(range(30, 40), range(40)), (range(40), range(3, 9)), ([5, 39, 20], [0, 17, 33]), ([39], [0])],
)
def test_any_block_equals_the_whole(key, edit, rows, columns):
    prior = edit(prior_of(key, torch.float64), TRAINED)
    inputs = window(prior, LENGTH, dtype=torch.float64)
    whole = bias(prior, inputs)[..., list(rows), :][..., list(columns)]
    seen = torch.tensor(list(columns)) <= torch.tensor(list(rows))[:, None]
    block = bias(prior, inputs, rows, columns)
    torch.testing.assert_close(torch.where(seen, block, 0), torch.where(seen, whole, 0), rtol=0, atol=1e-12)


def test_log_prior_by_hand():
    """Exponent 1, L = 2: weights 1/(1+d) up to d = 2; capped at 1/3; repaired by e^(-1/2) per token beyond."""
    inner = make(LogDistance, heads=1)
    with torch.no_grad():
        inner.theta_H.fill_(1.0).expm1_().log_()
    row, every = torch.tensor([4]), torch.arange(5)
    context = PriorContext(row, every)
    assert Cap(inner, 2)(context)[0, 0, 0].exp().tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 1 / 2, 1])
    repaired = [0.2 * 0.36787944, 0.25 * 0.60653066, 1 / 3, 1 / 2, 1]
    assert Repair(inner, 2)(context)[0, 0, 0].exp().tolist() == pytest.approx(repaired)


class Rising(LogPrior):
    """Summable or not: nobody knows."""


@pytest.mark.parametrize("inner", [make(LogDistance), make(LogDistance, exponents="above-one"), make(ALiBi)])
def test_summability_follows_the_theory(inner):
    assert Cap(inner, 8).summable() is False
    assert Repair(inner, 8).summable() is True


def test_summability_of_an_unknown_prior():
    inner = make(Rising)
    assert Cap(inner, 8).summable() is False
    assert Repair(inner, 8).summable() is None


def test_an_edit_no_longer_claims_to_be_a_plain_distance_form():
    """A kernel that fuses the inner form would undo the edit."""
    assert BoundPrior(Cap(make(ALiBi), 8)).distance_form() is None
    assert BoundPrior(Repair(make(LogDistance), 8)).distance_form() is None
