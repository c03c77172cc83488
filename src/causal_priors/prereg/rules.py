"""Interpret a rule: from measured values to an outcome, with every number that it rests on.

All members of a rule must be there, on the same blocks and targets; nothing shrinks "every". Differences are rounded to
twelve decimals before they meet a threshold, so that a tie in decimals is a tie, and a tie holds (see
preregistration/README.md), except where a rule is strict.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from causal_priors.prereg.decidable import admissible_range
from causal_priors.prereg.observations import NotEvaluatedError, Observations, Scored
from causal_priors.prereg.terms import (
    EXPLORATORY,
    REGISTERED,
    AtMostEverySeed,
    DirectionEveryCheckpoint,
    FallingEverySeed,
    Group,
    Intervention,
    LowerAnyOf,
    LowerEverySeed,
    Operand,
    Protocol,
    RegisteredTest,
)
from causal_priors.runs import Run

HOLDS, FAILS, NOT_EVALUATED = "holds", "fails", "not evaluated"
TRIGGERED, NOT_TRIGGERED = "triggered", "not triggered"
DECIMALS = 12
UNBOUNDED = (-math.inf, math.inf)
Row = dict[str, Any]


@dataclass(frozen=True)
class Finding:
    """What a rule found. `margin`: how far the deciding value lies on the holding side, in the metric's unit.

    `observed` enters the verdict; `beside` (other comparators) and `exploratory` (other checkpoints) do not.
    """

    outcome: str
    reason: str = ""
    margin: float | None = None
    observed: list[Row] = field(default_factory=list)
    selection: Row | None = None
    beside: list[Row] = field(default_factory=list)
    exploratory: list[Row] = field(default_factory=list)

    @property
    def n(self) -> int:
        """Number of observed comparisons."""
        return len(self.observed)


def evaluate_rule(test: RegisteredTest, protocol: Protocol, observations: Observations) -> Finding:
    """Return what `test` finds. Raises `NotEvaluatedError` where a member is missing or cannot be used."""
    scorer = _Scorer(test, protocol, observations)
    match test.rule:
        case LowerEverySeed() as rule:
            return _lower_every(rule, scorer)
        case LowerAnyOf() as rule:
            return _lower_any(rule, scorer)
        case DirectionEveryCheckpoint() as rule:
            return _direction(rule, scorer, protocol)
        case AtMostEverySeed() as rule:
            return _at_most(rule, scorer)
        case FallingEverySeed() as rule:
            return _falling(rule, scorer)


class _Scorer:
    """Scored means for one test, each held to the floor and to the layout of what it is compared with."""

    def __init__(self, test: RegisteredTest, protocol: Protocol, observations: Observations) -> None:
        self.rule, self.metrics, self._observations = test.rule, protocol.metrics, observations
        self.scale = observations.scale
        self._floor = protocol.floor(self.scale.name)
        self._ranges = {
            metric.quantity: admissible_range(metric, self.scale.vocabulary)
            for metric in protocol.metrics.values()
            if metric.minus_at is None
        }
        self._layouts: dict[tuple[Any, ...], tuple[str, bytes]] = {}
        self._values: dict[tuple[Any, ...], str] = {}

    def mean(self, run: Run, variant: str, metric: str, length: int, blocks: str, stage: str = "evaluate") -> Scored:
        what = self.metrics[metric]
        rows_in = self._ranges.get(what.quantity, UNBOUNDED)
        found = self._observations.scored(run, stage, variant, what, length, blocks, rows_in)
        name = run.name(self.scale)
        if found.targets < self._floor:
            raise NotEvaluatedError(
                f"run {name} has {found.targets} targets at {length} L, below the floor of {self._floor}"
            )
        self._check_same_targets(run, name, metric, length, found)
        self._check_own_values(name, stage, variant, metric, length, found)
        return found

    def _check_same_targets(self, run: Run, name: str, metric: str, length: int, found: Scored) -> None:
        key = (run.size, run.multiple, metric, length)
        other, layout = self._layouts.setdefault(key, (name, found.layout))
        if layout != found.layout:
            raise NotEvaluatedError(f"runs {other} and {name} did not score the same blocks and targets")

    def _check_own_values(self, name: str, stage: str, variant: str, metric: str, length: int, found: Scored) -> None:
        # Two trainings never agree to the last bit in every window; equal rows are one run under two names.
        other = self._values.setdefault((stage, variant, metric, length, found.rows), name)
        if other != name:
            raise NotEvaluatedError(f"runs {other} and {name} hold the same values: one run under two names")

    def below(self, left: Operand, right: Operand, groups: Sequence[Group]) -> list[Row]:
        """Return right - left for each seed of each group, in the rule's metric, length and blocks."""
        rows = []
        rule = self.rule
        for group in groups:
            for seed in group.seeds:
                lower, upper = (Run(group.size, item.arm, group.multiple, seed) for item in (left, right))
                a = self.mean(lower, left.variant, rule.metric, rule.length, rule.blocks)
                b = self.mean(upper, right.variant, rule.metric, rule.length, rule.blocks)
                if a.dtype != b.dtype:
                    names = f"{lower.name(self.scale)} and {upper.name(self.scale)}"
                    raise NotEvaluatedError(f"runs {names} were evaluated in {a.dtype} and {b.dtype}")
                rows.append(
                    {
                        "arm": str(left),
                        "comparator": str(right),
                        **self.place(lower),
                        "value": a.value,
                        "comparator_value": b.value,
                        "difference": settled(b.value - a.value),
                        "targets": a.targets,
                    }
                )
        return rows

    def place(self, run: Run) -> Row:
        """Where a value was measured: size, training length and window length in tokens, seed."""
        train_length = run.train_length(self.scale)
        return {
            "size": run.size,
            "train_length": train_length,
            "length": self.rule.length * train_length,
            "seed": run.seed,
        }


def settled(difference: float) -> float:
    """Return a difference rounded to twelve decimals, without a negative zero."""
    return round(difference, DECIMALS) + 0.0


def _smallest(rows: Iterable[Row]) -> float:
    return min(float(row["difference"]) for row in rows)


def _lower_every(rule: LowerEverySeed, scorer: _Scorer) -> Finding:
    arm, selection = _best(rule, scorer)
    observed = [row for right in rule.right for row in scorer.below(Operand(arm), right, rule.groups)]
    margin = settled(_smallest(observed) - rule.threshold)
    beside: list[Row] = []
    for right in rule.beside:
        try:
            rows = scorer.below(Operand(arm), right, rule.groups)
        except NotEvaluatedError as reason:
            beside.append({"comparator": str(right), "outcome": NOT_EVALUATED, "reason": str(reason), "observed": []})
            continue
        outcome = HOLDS if _smallest(rows) >= rule.threshold else FAILS
        beside.append({"comparator": str(right), "outcome": outcome, "reason": "", "observed": rows})
    return Finding(HOLDS if margin >= 0 else FAILS, "", margin, observed, selection, beside)


def _best(rule: LowerEverySeed, scorer: _Scorer) -> tuple[str, Row | None]:
    """The arm to score: the only one, or the one with the lowest selecting metric averaged over all seeds."""
    if rule.select is None:
        return rule.left[0], None
    select = rule.select
    means: dict[str, float] = {}
    for arm in rule.left:
        values = [
            scorer.mean(
                Run(group.size, arm, group.multiple, seed), "plain", select.metric, select.length, select.blocks
            ).value
            for group in rule.groups
            for seed in group.seeds
        ]
        means[arm] = settled(math.fsum(values) / len(values))
    chosen = min(rule.left, key=lambda arm: means[arm])
    return chosen, {
        "arm": chosen,
        "metric": select.metric,
        "length": select.length,
        "blocks": select.blocks,
        "means": means,
    }


def _lower_any(rule: LowerAnyOf, scorer: _Scorer) -> Finding:
    by_arm = {arm: scorer.below(Operand(arm), rule.right, rule.groups) for arm in rule.left}
    smallest = {arm: _smallest(rows) for arm, rows in by_arm.items()}
    best = max(rule.left, key=lambda arm: smallest[arm])
    margin = settled(smallest[best] - rule.threshold)
    observed = [row for rows in by_arm.values() for row in rows]
    passing = [arm for arm in rule.left if smallest[arm] >= rule.threshold]
    reason = f"by {', '.join(passing)}" if passing else f"closest is {best}"
    return Finding(TRIGGERED if passing else NOT_TRIGGERED, reason, margin, observed)


def _direction(rule: DirectionEveryCheckpoint, scorer: _Scorer, protocol: Protocol) -> Finding:
    observed = [_change(rule, scorer, item) for item in protocol.interventions_of(rule, REGISTERED)]
    exploratory: list[Row] = []
    for item in protocol.interventions_of(rule, EXPLORATORY):
        try:
            exploratory.append(_change(rule, scorer, item))
        except NotEvaluatedError as why:
            exploratory.append({"edit": item.edit, "run": item.run.name(scorer.scale), "reason": str(why)})
    against = [row for row in observed if row["resolved"] and not row["as_predicted"]]
    unresolved = [row for row in observed if not row["resolved"]]
    margin = min(settled(row["predicted"] * row["difference"] - row["threshold"]) for row in observed)
    outcome, reason = HOLDS, ""
    if against:
        outcome, reason = FAILS, f"moved the other way: {_names(against)}"
    elif unresolved:
        outcome, reason = NOT_EVALUATED, f"{len(unresolved)} of {len(observed)} unresolved: {_names(unresolved)}"
    return Finding(outcome, reason, margin, observed, exploratory=exploratory)


def _names(rows: Sequence[Row]) -> str:
    names = [f"{row['edit']} of {row['run']}" for row in rows]
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _change(rule: DirectionEveryCheckpoint, scorer: _Scorer, item: Intervention) -> Row:
    before, after = (
        scorer.mean(item.run, variant, rule.metric, rule.length, rule.blocks, "intervene")
        for variant in ("plain", item.edit)
    )
    name = item.run.name(scorer.scale)
    if before.dtype != after.dtype:
        raise NotEvaluatedError(
            f"run {name} was evaluated in {before.dtype} before and {after.dtype} after {item.edit}"
        )
    resolution = dict(rule.resolution).get(before.dtype)
    if resolution is None:
        raise NotEvaluatedError(f"run {name} was evaluated in {before.dtype}, for which no resolution is registered")
    predicted = dict(rule.edits)[item.edit]
    change = settled(after.value - before.value)
    resolved = abs(change) >= resolution
    return {
        "edit": item.edit,
        "run": name,
        "arm": item.run.arm,
        **scorer.place(item.run),
        "before": before.value,
        "after": after.value,
        "difference": change,
        "predicted": predicted,
        "threshold": resolution,
        "dtype": before.dtype,
        "resolved": resolved,
        "as_predicted": resolved and change * predicted > 0,
        "targets": before.targets,
    }


def _at_most(rule: AtMostEverySeed, scorer: _Scorer) -> Finding:
    observed = []
    for arm, bound in rule.bounds:
        for run, scored in _each(rule.groups, arm, rule, scorer):
            room = settled(bound - scored.value)
            row = {"arm": arm, **scorer.place(run), "value": scored.value, "threshold": bound, "difference": room}
            observed.append({**row, "targets": scored.targets})
    margin = _smallest(observed)
    return Finding(HOLDS if margin >= 0 else FAILS, "", margin, observed)


def _falling(rule: FallingEverySeed, scorer: _Scorer) -> Finding:
    values = {
        arm: {
            (run.size, run.multiple, run.seed): (run, scored) for run, scored in _each(rule.groups, arm, rule, scorer)
        }
        for arm in rule.arms
    }
    observed = []
    for first, second in pairwise(rule.arms):
        for key, (run, upper) in values[first].items():
            lower = values[second][key][1]
            if upper.dtype != lower.dtype:
                raise NotEvaluatedError(f"arms {first} and {second} were evaluated in {upper.dtype} and {lower.dtype}")
            row = {"arm": second, "comparator": first, **scorer.place(run), "value": lower.value}
            drop = settled(upper.value - lower.value)
            observed.append({**row, "comparator_value": upper.value, "difference": drop, "targets": lower.targets})
    margin = settled(_smallest(observed) - rule.threshold)
    return Finding(HOLDS if margin > 0 else FAILS, "", margin, observed)


def _each(
    groups: Sequence[Group], arm: str, rule: AtMostEverySeed | FallingEverySeed, scorer: _Scorer
) -> list[tuple[Run, Scored]]:
    runs = [Run(group.size, arm, group.multiple, seed) for group in groups for seed in group.seeds]
    return [(run, scorer.mean(run, "plain", rule.metric, rule.length, rule.blocks)) for run in runs]
