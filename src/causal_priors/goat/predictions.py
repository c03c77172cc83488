"""The sealed predictions of experiment 0006, checked: each rule by its name, with the numbers that the protocol holds.

A prediction that fails is a result. One whose arms are missing or diverged is not evaluated and says why.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from causal_priors.errors import refuse

AS_PREDICTED, OTHERWISE, NOT_EVALUATED = "as predicted", "not as predicted", "not evaluated"


@dataclass(frozen=True)
class Facts:
    """The collected tables, the arms that should be in them, L, and the longest multiple of it in each test."""

    mixture: pd.DataFrame
    prior: pd.DataFrame
    retrieval: pd.DataFrame
    sinks: pd.DataFrame
    arms: tuple[str, ...]
    train_length: int


class _MissingError(Exception):
    """An arm that a rule reads has no rows."""


Found = tuple[bool, str]


def check(predictions: tuple[dict[str, Any], ...], facts: Facts) -> pd.DataFrame:
    """Return one row per prediction: id, claim, outcome and what was observed.

    Raises `UserError` for a rule that does not exist.
    """
    rows = []
    for row in predictions:
        if row["rule"] not in RULES:
            raise refuse("is not a rule", key=f"predictions.{row['id']}.rule", value=row["rule"])
        try:
            holds, observed = RULES[row["rule"]](facts, row["numbers"])
            outcome = AS_PREDICTED if holds else OTHERWISE
        except _MissingError as error:
            outcome, observed = NOT_EVALUATED, str(error)
        rows.append({"id": row["id"], "claim": row["claim"], "outcome": outcome, "observed": observed})
    return pd.DataFrame(rows, columns=["id", "claim", "outcome", "observed"])


def _sink_rises(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    best = _highest_head(facts, "prior_key", lambda u: u[0] - u[1:].max())
    return best[0] >= numbers["least"], f"{best[0]:+.3f} nats in layer {best[1]}, head {best[2]}"


def _lag_one(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    def rise(k: np.ndarray) -> float:
        return float(k[1] - max(k[0], k[2])) if k.argmax() == 1 else -math.inf

    best = _highest_head(facts, "prior_lag", rise)
    if best[0] == -math.inf:
        return False, "no head is highest at lag 1"
    return best[0] >= numbers["least"], f"{best[0]:+.3f} nats in layer {best[1]}, head {best[2]}"


def _closes(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    share = _share(facts, numbers["arm"], facts.train_length)
    return share >= numbers["least"], f"{share:.3f}"


def _closes_least(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    shares = {arm: _share(facts, arm, facts.train_length) for arm in facts.arms}
    least = min(shares, key=shares.__getitem__)
    return least == numbers["arm"], f"{least} {shares[least]:.3f}, {numbers['arm']} {shares[numbers['arm']]:.3f}"


def _closes_more(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    mine, other = (_share(facts, numbers[key], facts.train_length) for key in ("arm", "other"))
    return mine >= other, f"{mine:.3f} against {other:.3f}"


def _loses_first(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    longest = int(facts.mixture["length"].max())
    falls = [
        _share(facts, numbers[key], facts.train_length) - _share(facts, numbers[key], longest)
        for key in ("arm", "other")
    ]
    text = f"{numbers['arm']} falls by {falls[0]:.3f}, {numbers['other']} by {falls[1]:.3f}"
    return falls[0] >= numbers["least"] and falls[1] < falls[0], text


def _learns_passkey(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    correct = {arm: _passkey(facts, arm, facts.train_length)["correct"].mean() for arm in facts.arms}
    learnt = [arm for arm, value in correct.items() if value >= numbers["least"]]
    rest = ", ".join(f"{arm} {value:.2f}" for arm, value in correct.items() if arm not in learnt)
    return len(learnt) >= numbers["arms"], f"{len(learnt)} arms{f'; not {rest}' if rest else ''}"


def _loses_distant(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    gaps = {arm: _distant_gap(facts, arm) for arm in numbers["arms"]}
    text = ", ".join(f"{arm} {gap:+.2f}" for arm, gap in gaps.items())
    return all(gap <= -numbers["least"] for gap in gaps.values()), f"depth 0 minus depth 1: {text}"


def _far_mass_helps(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    longest = int(facts.retrieval["length"].max())
    far = pd.Series({arm: _passkey(facts, arm, longest)["far_mass"].mean() for arm in facts.arms})
    gaps = pd.Series({arm: _distant_gap(facts, arm) for arm in facts.arms})
    if min(far.nunique(), gaps.nunique()) < 2:
        raise _MissingError("a rank correlation needs values that differ")
    # Pearson's of the ranks is Spearman's.
    correlation = float(far.rank().corr(gaps.rank()))
    return correlation > numbers["least"], f"{correlation:+.2f} over {len(far)} arms"


def _loses_all(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    longest = int(facts.retrieval["length"].max())
    short, long = (float(_passkey(facts, numbers["arm"], n)["correct"].mean()) for n in (facts.train_length, longest))
    return short > 0 and long <= numbers["most"] * short, f"{short:.2f} at L, {long:.2f} at {longest} tokens"


def _sink_dilutes(facts: Facts, numbers: Mapping[str, Any]) -> Found:
    longest = int(facts.sinks["length"].max())
    growth = math.log(longest / facts.train_length)
    kept = []
    for arm in facts.arms:
        mean = _rows(facts.sinks, arm).groupby("length")[["mass", "margin"]].mean()
        mass, higher = mean.loc[longest].to_numpy(float) - mean.loc[facts.train_length].to_numpy(float)
        if mass >= 0 or higher >= growth:
            kept.append(f"{arm} (mass {mass:+.3f}, margin {higher:+.2f})")
    return not kept, f"otherwise in {', '.join(kept)}" if kept else f"in all {len(facts.arms)} arms"


RULES: Mapping[str, Callable[[Facts, Mapping[str, Any]], Found]] = {
    "sink-rises": _sink_rises,
    "lag-one": _lag_one,
    "closes": _closes,
    "closes-least": _closes_least,
    "closes-more": _closes_more,
    "loses-first": _loses_first,
    "learns-passkey": _learns_passkey,
    "loses-distant": _loses_distant,
    "far-mass-helps": _far_mass_helps,
    "loses-all": _loses_all,
    "sink-dilutes": _sink_dilutes,
}


def _rows(frame: pd.DataFrame, arm: str) -> pd.DataFrame:
    rows = frame[frame["arm"] == arm]
    if rows.empty:
        raise _MissingError(f"{arm} has no measurements")
    return rows


def _share(facts: Facts, arm: str, length: int) -> float:
    rows = _rows(facts.mixture, arm)
    return float(rows[rows["length"] == length]["share"].iloc[0])


def _passkey(facts: Facts, arm: str, length: int) -> pd.DataFrame:
    rows = _rows(facts.retrieval, arm)
    return rows[(rows["task"] == "passkey") & (rows["length"] == length)]


def _distant_gap(facts: Facts, arm: str) -> float:
    """Log-probability of the passkey at the longest windows, at the lowest depth minus at the highest."""
    rows = _passkey(facts, arm, int(facts.retrieval["length"].max())).sort_values("depth")
    return float(rows["log_probability"].iloc[0] - rows["log_probability"].iloc[-1])


def _highest_head(facts: Facts, quantity: str, of: Callable[[np.ndarray], float]) -> tuple[float, int, int]:
    """Largest value of `of` over Goat's heads, with layer and head."""
    rows = facts.prior[facts.prior["quantity"] == quantity]
    if rows.empty:
        raise _MissingError("goat has no measurements")
    found = []
    for _, part in rows.groupby(["layer", "head"]):
        value = float(of(part.sort_values("index")["value"].to_numpy()))
        found.append((value, int(part["layer"].iloc[0]), int(part["head"].iloc[0])))
    return max(found)
