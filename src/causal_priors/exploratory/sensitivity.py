"""At which threshold would a verdict be another one?

Each threshold of a rule is moved while the others stay, and the rule is scored again by the code that scored it. An
outcome can change only where the threshold passes an observed value, so scoring once between each two neighbouring
values finds every change, and the nearest on each side is reported.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from causal_priors.exploratory.result import Absent, Result, collect
from causal_priors.prereg.observations import Observations
from causal_priors.prereg.rules import Finding, Row, settled
from causal_priors.prereg.scoring import find
from causal_priors.prereg.terms import (
    AtMostEverySeed,
    DirectionEveryCheckpoint,
    FallingEverySeed,
    LowerAnyOf,
    LowerEverySeed,
    Protocol,
    RegisteredTest,
    Rule,
)

COLUMNS = ["test", "outcome", "margin", "threshold", "frozen", "unit", "side", "flips_at", "distance", "becomes"]
ALL_BOUNDS = "all bounds, moved together"


@dataclass(frozen=True)
class Knob:
    """One threshold of a rule. frozen: its sealed value. at: the rule with another value. values: where it may matter.

    floor: the least value that means something.
    """

    name: str
    frozen: float
    at: Callable[[float], Rule]
    values: tuple[float, ...]
    floor: float = float("-inf")


def sensitivity(protocols: Sequence[Protocol], observations: Observations, implemented: Collection[str]) -> Result:
    """Return the nearest threshold below and above the frozen one at which a test would have another outcome.

    One row per test, threshold and side where there is such a value; one row without, where no value changes anything.
    flips_at is the observed value that the threshold must pass; distance is how far it lies from the frozen one.
    """
    found = (
        row
        for protocol in protocols
        for test in protocol.tests
        for row in _of_test(test, protocol, observations, implemented)
    )
    return collect(found, COLUMNS)


def _of_test(
    test: RegisteredTest, protocol: Protocol, observations: Observations, implemented: Collection[str]
) -> Iterator[Row | Absent]:
    finding = find(test, protocol, observations, implemented)
    if not finding.observed:
        yield Absent(test.id, finding.reason)
        return

    def outcome(rule: Rule) -> str:
        return find(replace(test, rule=rule), protocol, observations, implemented).outcome

    head = {"test": test.id, "outcome": finding.outcome, "margin": finding.margin}
    unit = protocol.metrics[test.rule.metric].unit
    for knob in knobs(test.rule, finding):
        row = {**head, "threshold": knob.name, "frozen": knob.frozen, "unit": unit}
        flips = list(_flips(knob, finding.outcome, outcome))
        for side, value, becomes in flips:
            yield {
                **row,
                "side": side,
                "flips_at": value,
                "distance": settled(value - knob.frozen),
                "becomes": becomes,
            }
        if not flips:
            yield {**row, "side": "none", "flips_at": None, "distance": None, "becomes": ""}


def knobs(rule: Rule, finding: Finding) -> list[Knob]:
    """Return the thresholds of `rule`, with the values that were observed where each of them matters."""
    match rule:
        case LowerEverySeed() | LowerAnyOf() | FallingEverySeed():
            return [_difference(rule, finding)]
        case DirectionEveryCheckpoint():
            dtypes = sorted({row["dtype"] for row in finding.observed})
            return [_resolution(rule, finding, dtype) for dtype in dtypes]
        case AtMostEverySeed():
            return [_shift(rule, finding), *(_bound(rule, finding, arm) for arm, _ in rule.bounds)]


def _difference(rule: LowerEverySeed | LowerAnyOf | FallingEverySeed, finding: Finding) -> Knob:
    values = tuple(row["difference"] for row in finding.observed)
    return Knob("difference", rule.threshold, lambda value: replace(rule, threshold=value), values)


def _resolution(rule: DirectionEveryCheckpoint, finding: Finding, dtype: str) -> Knob:
    frozen = dict(rule.resolution)

    def at(value: float) -> Rule:
        return replace(rule, resolution=tuple({**frozen, dtype: value}.items()))

    values = tuple(abs(row["difference"]) for row in finding.observed if row["dtype"] == dtype)
    return Knob(f"resolution in {dtype}", frozen[dtype], at, values, floor=0.0)


def _shift(rule: AtMostEverySeed, finding: Finding) -> Knob:
    def at(value: float) -> Rule:
        return replace(rule, bounds=tuple((arm, bound + value) for arm, bound in rule.bounds))

    return Knob(ALL_BOUNDS, 0.0, at, tuple(-row["difference"] for row in finding.observed))


def _bound(rule: AtMostEverySeed, finding: Finding, arm: str) -> Knob:
    frozen = dict(rule.bounds)

    def at(value: float) -> Rule:
        return replace(rule, bounds=tuple({**frozen, arm: value}.items()))

    values = tuple(settled(row["value"]) for row in finding.observed if row["arm"] == arm)
    return Knob(f"bound of {arm}", frozen[arm], at, values)


def _flips(knob: Knob, outcome: str, score: Callable[[Rule], str]) -> Iterator[tuple[str, float, str]]:
    """Yield (side, value, outcome beyond it) of the nearest change below and above the frozen value."""
    values = sorted({value for value in knob.values if value > knob.floor})
    # One sample from each interval that the values cut the line into: (value below it, sample, value above it).
    low = max(knob.floor, values[0] - 1) if values else knob.floor
    edges = [low, *values, values[-1] + 1] if values else []
    intervals = [(first, (first + second) / 2, second) for first, second in pairwise(edges)]
    for _, sample, second in reversed(intervals):
        if second <= knob.frozen and (becomes := score(knob.at(sample))) != outcome:
            yield "below", second, becomes
            break
    for first, sample, _ in intervals:
        if first >= knob.frozen and (becomes := score(knob.at(sample))) != outcome:
            yield "above", first, becomes
            break
