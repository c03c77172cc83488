"""Does far mass stay bounded at any length? For each arm: does the sum over d of exp(b(d)) converge?

If it does, some window holds nearly all of the prior's mass however long the context; if not, every fixed window is
diluted. Where the class of the log-prior knows its formula, the answer is the formula's (`priors.formulas`), given the
parameters of the heads, or a condition on them; where the bias is computed from the tokens, it is "depends on data",
with the condition that decides. Transport changes nothing of this: below strength one, with bounded content scores, it
dilutes like the prior under it, and with none it dilutes. Pure NumPy, no torch: classes are known by their names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from causal_priors.arms import DISTANCE, FOURIER, GRAPE, PATH, Arm, Part
from causal_priors.errors import refuse
from causal_priors.priors.formulas import KERPLE, LINEAR, LOG, Formula, alibi_slopes, initial_exponents

YES, NO, DATA = "yes", "no", "depends on data"
EDITS = ("cap", "repair")
# Any number of heads gives the same answer.
_HEADS = 8


@dataclass(frozen=True)
class Classification:
    """bounded: True, False, or None where parameters or data decide. text: the answer in words, as a table shows it."""

    bounded: bool | None
    text: str


@dataclass(frozen=True)
class _Family:
    """What is known of a class of log-priors.

    formula: its function of distance, with `report`, the names that `parameters_report` gives the formula's parameters,
    or None where tokens enter. condition: what decides where nothing else is known. non_increasing: never rises with
    distance, whatever its parameters and the data.
    """

    condition: str
    non_increasing: bool
    formula: Formula | None = None
    report: Mapping[str, str] | None = None


_FAMILIES: Mapping[str, _Family] = {
    f"{DISTANCE}:LogDistance": _Family("iff α > 1", True, LOG, {"exponent": "exponent"}),
    f"{DISTANCE}:Kerple": _Family("iff p > 1", True, KERPLE, {"power": "exponent", "rate": "rate"}),
    f"{DISTANCE}:ALiBi": _Family("iff m > 0", True, LINEAR, {"slope": "slope"}),
    f"{PATH}:ForgetGate": _Family("while gates stay bounded away from 1", True),
    f"{PATH}:Cable": _Family("while path costs stay bounded away from 0", True),
    # A far key may open its gate more than a near one does: this prior can rise.
    f"{GRAPE}:GrapeA": _Family("while gates stay bounded away from 0", False),
    f"{GRAPE}:GrapeAP": _Family("while path costs stay bounded away from 0", True),
    f"{FOURIER}:Goat": _Family(DATA, False),
}
_UNKNOWN = _Family(DATA, False)


def classify(
    arm: Arm, edit: str | None = None, parameters: Mapping[str, Sequence[float]] | None = None
) -> Classification:
    """Return whether far mass of `arm` stays bounded, as it is or under `edit` ("cap" | "repair").

    parameters: of trained heads, as `LogPrior.parameters_report` names them ("exponent", "slope"); without them, what
    holds for any value that training can reach. Raises `UserError` for another edit, or an edit of an arm without a
    log-prior.
    """
    if edit is not None and edit not in EDITS:
        raise refuse("is not an edit", key="edit", value=edit, remedy=f"known edits: {', '.join(EDITS)}")
    if arm.log_prior is None:
        if edit is not None:
            raise refuse(f"cannot be made: arm {arm.key} has no log-prior to {edit}", key="edit", value=edit)
        return Classification(False, NO)
    if edit == "cap":
        return Classification(False, NO)
    family = _FAMILIES.get(arm.log_prior.ref, _UNKNOWN)
    plain = _as_it_is(arm.log_prior, family, parameters)
    if edit == "repair":
        # A prior that never rises stays below its value at L, so that the repair's geometric series bounds the sum.
        return Classification(True, YES) if family.non_increasing or plain.bounded else Classification(None, DATA)
    return plain


def formula_of(part: Part, given: Mapping[str, Any]) -> tuple[Formula, dict[str, np.ndarray]] | None:
    """Return a log-prior's function of distance and its parameters, or None where its bias is no such function.

    given: as `LogPrior.parameters_report` names them.
    """
    family = _FAMILIES.get(part.ref, _UNKNOWN)
    return None if family.formula is None else (family.formula, _named(family, given))


def _as_it_is(part: Part, family: _Family, given: Mapping[str, Sequence[float]] | None) -> Classification:
    if family.formula is None:
        return Classification(None, family.condition)
    values = _known(part) if given is None else _named(family, given)
    if values is None:
        return Classification(None, family.condition)
    bounded = bool(np.all(family.formula.summable(values)))
    return Classification(bounded, YES if bounded else NO)


def _named(family: _Family, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    report = family.report or {}
    return {name: np.asarray(given[key], dtype=np.float64) for name, key in report.items() if key in given}


def _known(part: Part) -> dict[str, np.ndarray] | None:
    """Fixed parameters, or initial ones whose parametrisation keeps them on their side of one; else None."""
    if part.ref == f"{DISTANCE}:ALiBi":
        return {"slope": np.array(alibi_slopes(_HEADS))}
    kind = part.options.get("exponents")
    if part.ref == f"{DISTANCE}:LogDistance" and kind in {"fixed", "above-one", "below-one", "margin"}:
        return {"exponent": np.array(initial_exponents(kind, _HEADS))}
    return None
