"""Sequences in which each token copies the first, or an earlier one, or is noise; and the best that can be predicted.

Shape legend: N sequences, T targets, V symbols. Token 0 is uniform. Token t >= 1 is token 0 with probability `first`,
token s = t - `back` (or 0 if that is before it) with `previous`, else uniform. Which of the three it is, is drawn afresh
for each token, so the context says nothing more than x_0 and x_s, and the best predictor is the mixture itself: first on
x_0, previous on x_s, noise / V on every symbol. Its expected loss depends on one bit, whether x_s = x_0, whose
probability a_s obeys a_0 = 1, a_t = (first + noise / V) + previous a_s.

The query that predicts token t stands at t - 1: the previous token (`back` 1) is its own, at lag 0; `back` 2 is lag 1.
"""

import math
from dataclasses import dataclass

import numpy as np

from causal_priors.errors import refuse
from causal_priors.goat.draws import Draws


@dataclass(frozen=True)
class Mixture:
    """The process: `vocabulary` symbols, and the probabilities of copying the first token and the one `back` before."""

    vocabulary: int
    first: float
    previous: float
    back: int = 1

    def __post_init__(self) -> None:
        if min(self.first, self.previous) < 0 or self.first + self.previous >= 1:
            problem = "leave no noise: with first and previous at or above zero, their sum must be below one"
            raise refuse(problem, key="copy", value={"first": self.first, "previous": self.previous})

    @property
    def noise(self) -> float:
        """Probability of noise."""
        return 1.0 - self.first - self.previous

    def sequences(self, draws: Draws, count: int, length: int) -> np.ndarray:
        """Return int64 [count, length]."""
        kind_NT = draws.uniform(count, length)
        ids_NT = draws.below(self.vocabulary, count, length)
        for t in range(1, length):
            kind = kind_NT[:, t]
            copied = np.where(kind < self.first, ids_NT[:, 0], ids_NT[:, max(t - self.back, 0)])
            ids_NT[:, t] = np.where(kind < self.first + self.previous, copied, ids_NT[:, t])
        return ids_NT

    def same(self, length: int) -> np.ndarray:
        """Probability that token t is the symbol of token 0, for t = 0 .. length - 1."""
        same = np.ones(length)
        for t in range(1, length):
            same[t] = self.first + self.noise / self.vocabulary + self.previous * same[max(t - self.back, 0)]
        return same

    def sources(self, length: int) -> np.ndarray:
        """Place of the token that the targets 1 .. length may copy beside token 0."""
        return np.maximum(np.arange(1, length + 1) - self.back, 0)

    def entropies(self) -> tuple[float, float]:
        """Entropy in nats of the next token where the two that it may copy are of one symbol, and where they are not."""
        rare = self.noise / self.vocabulary
        both = _plogp(rare + self.first + self.previous) + (self.vocabulary - 1) * _plogp(rare)
        apart = _plogp(rare + self.first) + _plogp(rare + self.previous) + (self.vocabulary - 2) * _plogp(rare)
        return both, apart

    def optimum(self, length: int) -> float:
        """Expected loss in nats a target of the best predictor, mean over the targets 1 .. length."""
        both, apart = self.entropies()
        same_T = self.same(length)[self.sources(length)]
        return float(np.mean(same_T * both + (1.0 - same_T) * apart))

    def first_only(self, length: int) -> float:
        """The same of the best predictor that knows t and token 0."""
        return float(np.mean([self._one_symbol(p) for p in self.same(length + 1)[1:]]))

    def previous_only(self, length: int) -> float:
        """The same of the best predictor that knows t and the earlier token that target t may copy."""
        same_T = self.same(length)[self.sources(length)]
        again_T = self.previous + self.noise / self.vocabulary + self.first * same_T
        return float(np.mean([self._one_symbol(p) for p in again_T]))

    def uniform(self) -> float:
        """Loss of a uniform guess, ln V."""
        return math.log(self.vocabulary)

    def _one_symbol(self, probability: float) -> float:
        """Entropy where one symbol has `probability` and the others share the rest evenly."""
        others = self.vocabulary - 1
        return _plogp(probability) + others * _plogp((1.0 - probability) / others)

    def expected_losses(self, ids: np.ndarray, log_q_NTV: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return a predictor's expected loss given each context, and the best one's, both [N, T] in nats.

        ids: int64 [N, T + 1], inputs and the targets that follow; log_q_NTV: the predictor's log-probabilities of the
        targets. The targets themselves do not enter: the expectation over them is exact.
        """
        at_first = np.take_along_axis(log_q_NTV, np.broadcast_to(ids[:, :1, None], (*ids[:, 1:].shape, 1)), axis=2)
        earlier = ids[:, self.sources(ids.shape[1] - 1)]
        at_previous = np.take_along_axis(log_q_NTV, earlier[:, :, None], axis=2)
        copied = self.first * at_first[..., 0] + self.previous * at_previous[..., 0]
        loss_NT = -copied - self.noise * log_q_NTV.mean(axis=2)
        both, apart = self.entropies()
        best_NT = np.where(earlier == ids[:, :1], both, apart)
        return loss_NT, best_NT


def _plogp(p: float) -> float:
    return -p * math.log(p) if p > 0 else 0.0
