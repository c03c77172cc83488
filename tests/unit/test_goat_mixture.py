"""The mixture of copies against enumeration of every sequence, and the stream it is drawn from."""

import itertools
import math

import numpy as np
import pytest

from causal_priors.errors import UserError
from causal_priors.goat.draws import Draws
from causal_priors.goat.mixture import Mixture

SMALL = Mixture(vocabulary=3, first=0.25, previous=0.4)
TWO_BACK = Mixture(vocabulary=3, first=0.25, previous=0.4, back=2)
LENGTH = 4


def everything(mixture, length):
    """Every sequence of length + 1 tokens with its probability, and each target's conditional probability."""
    for ids in itertools.product(range(mixture.vocabulary), repeat=length + 1):
        given = [
            mixture.first * (ids[t] == ids[0])
            + mixture.previous * (ids[t] == ids[max(t - mixture.back, 0)])
            + (1 - mixture.first - mixture.previous) / mixture.vocabulary
            for t in range(1, length + 1)
        ]
        yield ids, math.prod(given) / mixture.vocabulary, given


def conditional_entropy(mixture, known):
    """Mean over targets t of H(x_t | known(ids, t)) in nats, by enumeration."""
    total = 0.0
    for t in range(1, LENGTH + 1):
        joint: dict[tuple[int, int], float] = {}
        for ids, probability, _ in everything(mixture, LENGTH):
            key = (known(ids, t), ids[t])
            joint[key] = joint.get(key, 0.0) + probability
        marginal: dict[int, float] = {}
        for (seen, _), probability in joint.items():
            marginal[seen] = marginal.get(seen, 0.0) + probability
        total -= sum(p * math.log(p / marginal[seen]) for (seen, _), p in joint.items())
    return total / LENGTH


@pytest.mark.parametrize("mixture", [SMALL, TWO_BACK])
def test_the_optimum_is_the_expectation_over_every_sequence(mixture):
    rows = list(everything(mixture, LENGTH))
    assert math.isclose(sum(p for _, p, _ in rows), 1.0, rel_tol=1e-12)
    expected = -sum(p * sum(map(math.log, given)) / LENGTH for _, p, given in rows)
    assert math.isclose(mixture.optimum(LENGTH), expected, rel_tol=1e-12)


@pytest.mark.parametrize("mixture", [SMALL, TWO_BACK])
def test_what_less_knowledge_gives_is_the_entropy_over_every_sequence(mixture):
    first = conditional_entropy(mixture, lambda ids, t: ids[0])
    earlier = conditional_entropy(mixture, lambda ids, t: ids[max(t - mixture.back, 0)])
    assert math.isclose(mixture.first_only(LENGTH), first, rel_tol=1e-12)
    assert math.isclose(mixture.previous_only(LENGTH), earlier, rel_tol=1e-12)
    assert mixture.optimum(LENGTH) < earlier < first < mixture.uniform()


def test_the_registered_mixture():
    # .3 / .3 over 64 symbols: the chance that a token is the first one's symbol tends to (.3 + .4 / 64) / .7.
    registered = Mixture(64, 0.3, 0.3)
    same = registered.same(64)
    assert same[0] == 1.0
    assert math.isclose(same[1], 0.60625, rel_tol=1e-12)
    assert math.isclose(same[63], 0.4375, rel_tol=1e-9)


@pytest.mark.parametrize("mixture", [SMALL, TWO_BACK])
def test_expected_losses_sum_over_every_next_token(mixture):
    generator = np.random.default_rng(0)
    ids = mixture.sequences(Draws(1), 5, 7)
    log_q = np.log(generator.dirichlet(np.ones(3), size=(5, 6)))
    loss, best = mixture.expected_losses(ids, log_q)
    for n, t in itertools.product(range(5), range(6)):
        p = np.full(3, mixture.noise / 3)
        p[ids[n, 0]] += mixture.first
        p[ids[n, max(t + 1 - mixture.back, 0)]] += mixture.previous
        assert math.isclose(loss[n, t], -(p * log_q[n, t]).sum(), rel_tol=1e-12)
        assert math.isclose(best[n, t], -(p * np.log(p)).sum(), rel_tol=1e-12)
        assert loss[n, t] > best[n, t]


def test_sequences_copy_as_often_as_they_should():
    count = 20_000
    ids = SMALL.sequences(Draws(2), count, 6)
    # Binomial means: five standard errors.
    for t, expected in enumerate(SMALL.same(6)):
        found = float((ids[:, t] == ids[:, 0]).mean())
        assert abs(found - expected) <= 5 * math.sqrt(expected * (1 - expected) / count)
    again = SMALL.previous + SMALL.noise / 3 + SMALL.first * SMALL.same(6)[4]
    assert abs(float((ids[:, 5] == ids[:, 4]).mean()) - again) <= 5 * math.sqrt(again * (1 - again) / count)
    assert np.array_equal(ids, SMALL.sequences(Draws(2), count, 6))
    assert not np.array_equal(ids[:10], SMALL.sequences(Draws(2, 1), 10, 6))


def test_different_numbers_are_different_and_even():
    rows = Draws(3).different(4, 2, 12_000)
    assert (rows[:, 0] != rows[:, 1]).all()
    counts = np.bincount(rows[:, 0] * 4 + rows[:, 1], minlength=16)
    assert set(np.flatnonzero(counts == 0)) == {0, 5, 10, 15}
    assert abs(counts[counts > 0] - 1000).max() <= 5 * math.sqrt(1000)


@pytest.mark.parametrize(("first", "previous"), [(0.5, 0.5), (0.7, 0.4), (-0.1, 0.5)])
def test_a_mixture_without_noise_is_refused(first, previous):
    with pytest.raises(UserError, match="leave no noise"):
        Mixture(8, first, previous)
