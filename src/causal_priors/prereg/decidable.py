"""Can a rule both hold and fail? Interval arithmetic over the declared ranges, asked before a protocol is sealed.

A rule is reduced to `statistic >= threshold` with the interval that the statistic can lie in when every metric lies in
its admissible range. A threshold outside the interval makes a test that was decided before any data; a threshold with
which both an effect and its opposite (or no effect at all) would count makes a test without a direction.
"""

import math

from causal_priors.errors import UserError, refuse
from causal_priors.prereg.terms import (
    AtMostEverySeed,
    DirectionEveryCheckpoint,
    FallingEverySeed,
    LowerAnyOf,
    LowerEverySeed,
    Metric,
    Operand,
    Protocol,
    RegisteredTest,
)

# The smallest vocabulary that a scale may have (scale.schema.yaml): ranges are at their narrowest there, and a rule
# must be decidable at every scale.
SMALLEST_VOCABULARY = 257


def admissible_range(metric: Metric, vocabulary: int) -> tuple[float, float]:
    """Return the least and greatest admissible value of `metric` with `vocabulary` rows in the embedding."""
    return metric.minimum, metric.maximum + (math.log(vocabulary) if metric.add_ln_vocabulary else 0.0)


def check_decidable(protocol: Protocol) -> None:
    """Refuse `protocol` if a rule of it cannot hold, cannot fail, or has no direction. Raises `UserError`."""
    for test in protocol.tests:
        metric = protocol.metrics[test.rule.metric]
        if metric.quantity == "exponent":
            raise _bad(protocol, test, "metric", metric.name, "is recorded only: it has no window length")
        low, high = admissible_range(metric, SMALLEST_VOCABULARY)
        if not low < high:
            raise refuse("has an empty range", file=protocol.file, key="metrics", value=metric.name)
        if metric.positions == "beyond" and test.rule.length == 1:
            raise _bad(protocol, test, "length", 1, "holds no position beyond the training length")
        _check_rule(protocol, test, low, high)


def _check_rule(protocol: Protocol, test: RegisteredTest, low: float, high: float) -> None:
    rule, width = test.rule, high - low
    match rule:
        case LowerEverySeed():
            _check_selection(protocol, test, rule)
            _check_lower(protocol, test, rule.left, rule.right, rule.threshold, width)
        case LowerAnyOf():
            _check_lower(protocol, test, rule.left, (rule.right,), rule.threshold, width)
        case DirectionEveryCheckpoint():
            edits = [edit for edit, _ in rule.edits]
            if len(set(edits)) < len(edits):
                raise _bad(protocol, test, "edits", edits, "names an edit twice: its direction is ambiguous")
            for dtype, resolution in rule.resolution:
                _check_threshold(protocol, test, f"resolution.{dtype}", resolution, width)
        case AtMostEverySeed():
            arms = [arm for arm, _ in rule.bounds]
            if len(set(arms)) < len(arms):
                raise _bad(protocol, test, "bounds", arms, "names an arm twice: its bound is ambiguous")
            for arm, bound in rule.bounds:
                if bound < low:
                    raise _bad(protocol, test, f"bounds.{arm}", bound, f"cannot hold: the metric is at least {low:g}")
                if bound >= high:
                    raise _bad(protocol, test, f"bounds.{arm}", bound, f"cannot fail: the metric is at most {high:g}")
        case FallingEverySeed():
            if len(rule.arms) < 2:
                raise _bad(protocol, test, "arms", list(rule.arms), "cannot fail: one arm has no order")
            if rule.threshold < 0:
                raise _bad(
                    protocol, test, "threshold", rule.threshold, "has no direction: a rise would count as a fall"
                )
            if rule.threshold * (len(rule.arms) - 1) >= width:
                problem = f"cannot hold: the range is only {width:g} wide"
                raise _bad(protocol, test, "threshold", rule.threshold, problem)


def _check_lower(
    protocol: Protocol,
    test: RegisteredTest,
    left: tuple[str, ...],
    right: tuple[Operand, ...],
    threshold: float,
    width: float,
) -> None:
    for comparator in right:
        if comparator in [Operand(arm) for arm in left]:
            raise _bad(protocol, test, "right", str(comparator), "cannot hold: an arm is never below itself")
    _check_threshold(protocol, test, "threshold", threshold, width)


def _check_threshold(protocol: Protocol, test: RegisteredTest, key: str, threshold: float, width: float) -> None:
    if threshold <= -width:
        raise _bad(protocol, test, key, threshold, f"cannot fail: no difference is below {-width:g}")
    if threshold <= 0:
        raise _bad(protocol, test, key, threshold, "has no direction: no effect, or the opposite one, would count")
    if threshold > width:
        raise _bad(protocol, test, key, threshold, f"cannot hold: no difference is above {width:g}")


def _check_selection(protocol: Protocol, test: RegisteredTest, rule: LowerEverySeed) -> None:
    if rule.select is None:
        if len(rule.left) > 1:
            raise _bad(protocol, test, "left", list(rule.left), "is ambiguous: no `select` says which arm is scored")
        return
    if len(rule.left) == 1:
        raise _bad(protocol, test, "select", rule.left[0], "chooses from one arm")
    if {rule.select.blocks, rule.blocks} != {"even", "odd"}:
        raise _bad(protocol, test, "select.blocks", rule.select.blocks, "chooses and scores on the same blocks")


def _bad(protocol: Protocol, test: RegisteredTest, key: str, value: object, problem: str) -> UserError:
    return refuse(problem, file=protocol.file, key=f"tests.{test.id}.rule.{key}", value=value, remedy="not sealed")
