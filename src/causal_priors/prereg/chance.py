"""How often a rule would come out `holds` by chance, and the rule in words.

Chance is meant under exchangeability: the compared arms of one seed (or before and after of one checkpoint) are equally
likely to stand in any order, seeds are independent, thresholds are zero. Thresholds only make it rarer.
"""

import math

from causal_priors.prereg.terms import (
    AtMostEverySeed,
    DirectionEveryCheckpoint,
    FallingEverySeed,
    Group,
    LowerAnyOf,
    LowerEverySeed,
    RegisteredTest,
)


def chance_level(test: RegisteredTest) -> tuple[float | None, str]:
    """Return the chance level of `holds` or `triggered`, and how it comes about. None where nothing is exchangeable."""
    match test.rule:
        case LowerEverySeed() as rule:
            pairs, arms, comparators = _pairs(rule.groups), len(rule.left), len(rule.right)
            if arms == comparators == 1:
                return lower_chance(1, 1, pairs), f"2^-{pairs} for {pairs} paired seeds"
            chosen = f", for one of {arms} arms being so" if arms > 1 else ""
            below = "below both comparators" if comparators == 2 else f"below {comparators} comparator(s)"
            note = f"at most, {below} on {pairs} paired seeds{chosen}; 2^-{pairs} for one arm and one comparator"
            return lower_chance(arms, comparators, pairs), note
        case LowerAnyOf() as rule:
            pairs, arms = _pairs(rule.groups), len(rule.left)
            note = f"one of {arms} arms below one comparator on {pairs} paired seeds; 2^-{pairs} for a given arm"
            return lower_chance(arms, 1, pairs), note
        case DirectionEveryCheckpoint() as rule:
            n = rule.checkpoints
            return 2.0**-n, f"2^-{n} for {n} checkpoints; those of one arm are alike, so this is a lower limit"
        case FallingEverySeed() as rule:
            pairs, arms = _pairs(rule.groups), len(rule.arms)
            return float(
                math.factorial(arms)
            ) ** -pairs, f"(1/{arms}!)^{pairs} for {arms} arms and {pairs} paired seeds"
        case AtMostEverySeed():
            return None, "none: values are held to fixed bounds, and nothing is exchanged"


def lower_chance(arms: int, comparators: int, seeds: int) -> float:
    """Return the chance that at least one of `arms` is below all of `comparators` on every one of `seeds` seeds.

    All are exchangeable within a seed. By inclusion and exclusion over sets of j arms: in one seed, j given arms are
    all below c given comparators with probability 1 / binomial(j + c, c).
    """
    return sum(
        (-1.0) ** (j + 1) * math.comb(arms, j) * float(math.comb(j + comparators, comparators)) ** -seeds
        for j in range(1, arms + 1)
    )


def in_words(test: RegisteredTest) -> str:
    """Return the rule as scoring reads it, in one line."""
    rule = test.rule
    where = f"{rule.metric}({_times(rule.length)})" + ("" if rule.blocks == "all" else f" on {rule.blocks} blocks")
    match rule:
        case LowerEverySeed():
            left = rule.left[0]
            if rule.select is not None:
                select = rule.select
                by = f"lowest {select.metric}({_times(select.length)}) on {select.blocks} blocks"
                left = f"the best of {', '.join(rule.left)} ({by})"
            right = " and ".join(str(item) for item in rule.right)
            return f"{left} below {right} in {where} by {rule.threshold:g} or more, {_every(rule.groups)}"
        case LowerAnyOf():
            left = f"one of {', '.join(rule.left)}"
            return f"{left} below {rule.right} in {where} by {rule.threshold:g} or more, {_every(rule.groups)}"
        case DirectionEveryCheckpoint():
            moves = " and ".join(f"{edit} moves {where} {'up' if sign > 0 else 'down'}" for edit, sign in rule.edits)
            by = ", ".join(f"{value:g} ({dtype})" for dtype, value in rule.resolution)
            return f"{moves}, by {by} or more, on each of {rule.checkpoints} checkpoints"
        case AtMostEverySeed():
            bounds = ", ".join(f"{bound:g} ({arm})" for arm, bound in rule.bounds)
            return f"{where} at most {bounds}, {_every(rule.groups)}"
        case FallingEverySeed():
            return f"{where} falls strictly from {' to '.join(rule.arms)}, {_every(rule.groups)}"


def _times(multiple: int) -> str:
    return "L" if multiple == 1 else f"{multiple}L"


def _every(groups: tuple[Group, ...]) -> str:
    parts = [f"{group.size} trained at {_times(group.multiple)}: {len(group.seeds)} seeds" for group in groups]
    return f"on every seed ({'; '.join(parts)})"


def _pairs(groups: tuple[Group, ...]) -> int:
    return sum(len(group.seeds) for group in groups)
