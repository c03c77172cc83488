"""An interval for every comparison that a registered test makes.

Which comparisons those are is read from the protocols through scoring itself: each row that a rule observed, each shown
beside it and each exploratory checkpoint is one comparison here, with the same difference.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from causal_priors.exploratory.bootstrap import UNRESOLVED, Interval, paired_interval
from causal_priors.exploratory.result import Absent, Result, collect
from causal_priors.prereg.observations import NotEvaluatedError, Observations
from causal_priors.prereg.rules import Row
from causal_priors.prereg.scoring import find
from causal_priors.prereg.terms import (
    AtMostEverySeed,
    DirectionEveryCheckpoint,
    FallingEverySeed,
    Protocol,
    RegisteredTest,
)
from causal_priors.runs import Run

COLUMNS = ["test", "role", "arm", "comparator", "size", "train_length", "length", "seed", "metric", "unit", "blocks"]
COLUMNS += ["difference", "low", "high", "sign", "neighbours", "threshold", "against_threshold"]
REGISTERED, BESIDE, EXPLORATORY = "registered", "beside", "exploratory"
# Rounding of two orders of summation, relative to values of some nats.
_ROUNDING = 1e-9
Blocks = tuple[NDArray[np.int64], NDArray[np.float64]]


def intervals(protocols: Sequence[Protocol], observations: Observations, implemented: Collection[str]) -> Result:
    """Return one row per comparison: its difference, as in the verdict, and the interval over blocks.

    against_threshold: where the interval lies beside the frozen threshold: "beyond" (all of it on the holding side),
    "short" (all on the other), "open", or "few blocks". A test that was not evaluated has no comparisons, and is absent
    with its reason.
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
    for row in finding.observed:
        yield _interval(row, REGISTERED, test, protocol, observations)
    for other in finding.beside:
        if other["reason"]:
            yield Absent(f"{test.id} beside {other['comparator']}", other["reason"])
        for row in other["observed"]:
            yield _interval(row, BESIDE, test, protocol, observations)
    for row in finding.exploratory:
        if "difference" in row:
            yield _interval(row, EXPLORATORY, test, protocol, observations)
        else:
            yield Absent(f"{test.id} {row['edit']} of {row['run']}", row["reason"])


def _interval(
    row: Row, role: str, test: RegisteredTest, protocol: Protocol, observations: Observations
) -> Row | Absent:
    rule, metric = test.rule, protocol.metrics[test.rule.metric]
    arm, comparator = row["arm"], row.get("comparator", "")
    if isinstance(rule, DirectionEveryCheckpoint):
        arm, comparator, threshold = f"{arm}+{row['edit']}", arm, row["threshold"]
    else:
        threshold = row.get("threshold", getattr(rule, "threshold", 0.0))
    try:
        found = paired_interval(differences(row, test, protocol, observations))
    except NotEvaluatedError as reason:
        return Absent(f"{test.id} {arm} against {comparator}", str(reason))
    if abs(found.mean - row["difference"]) > _ROUNDING:
        raise AssertionError(f"{test.id}: blocks give {found.mean}, the rule {row['difference']}")
    # A direction test asks for a change of at least the resolution to its own side; a bound asks for room at all.
    towards = row.get("predicted", 1)
    needed = 0.0 if isinstance(rule, AtMostEverySeed) else threshold
    place = _beside(needed, towards, found, strict=isinstance(rule, FallingEverySeed))
    return {
        "test": test.id,
        "role": role,
        "arm": arm,
        "comparator": comparator or f"bound {threshold:g}",
        **{key: row[key] for key in ("size", "train_length", "length", "seed")},
        "metric": metric.name,
        "unit": metric.unit,
        "blocks": found.n,
        "difference": row["difference"],
        "low": found.low,
        "high": found.high,
        "sign": found.sign if row.get("resolved", True) or found.sign == "zero" else UNRESOLVED,
        "neighbours": found.neighbours,
        "threshold": threshold,
        "against_threshold": place,
    }


def _beside(needed: float, towards: int, found: Interval, strict: bool) -> str:
    if found.sign == "few blocks":
        return found.sign
    low, high = sorted((towards * found.low, towards * found.high))
    if low > needed or (low == needed and not strict):
        return "beyond"
    return "short" if high < needed or (high == needed and strict) else "open"


def differences(row: Row, test: RegisteredTest, protocol: Protocol, observations: Observations) -> NDArray[np.float64]:
    """Return the difference that an observed row is about, block by block.

    Raises `NotEvaluatedError` where the two sides do not have the same blocks.
    """
    rule, metric = test.rule, protocol.metrics[test.rule.metric]
    multiple = row["train_length"] // observations.scale.sizes[row["size"]].train_length

    def side(arm: str, variant: str, stage: str = "evaluate") -> Blocks:
        run = Run(row["size"], arm, multiple, row["seed"])
        return observations.per_block(run, stage, variant, metric, rule.length, rule.blocks)

    if isinstance(rule, DirectionEveryCheckpoint):
        return _minus(side(row["arm"], row["edit"], "intervene"), side(row["arm"], "plain", "intervene"))
    lower = side(*_operand(row["arm"]))
    if isinstance(rule, AtMostEverySeed):
        return np.asarray(row["threshold"] - lower[1])
    return _minus(side(*_operand(row["comparator"])), lower)


def _operand(text: str) -> tuple[str, str]:
    """Arm and variant of an operand as a verdict spells it (`str(Operand)`)."""
    arm, _, variant = text.partition("+")
    return arm, variant or "plain"


def _minus(one: Blocks, other: Blocks) -> NDArray[np.float64]:
    if not np.array_equal(one[0], other[0]):
        raise NotEvaluatedError("the two sides have other blocks")
    return np.asarray(one[1] - other[1])
