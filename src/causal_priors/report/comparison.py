"""What the source reports and what came out here, line by line: outcomes, directions and, at its own scale, numbers.

The source's numbers belong to its sizes, text and budget, so they stand beside ours at the scale `paper` alone. At any
scale one can compare which way things went: which arm lost less, what grew with length, what an edit did. Step times
come from timing sidecars, which are outside every digest; they too are compared at that scale only, which keeps the
table reproducible at the others. Nothing here enters a verdict.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from causal_priors.errors import refuse
from causal_priors.prereg.ledger import PUBLISHED
from causal_priors.prereg.verdict_tables import Record
from causal_priors.report.sidecar import read_timing
from causal_priors.scale import Scale

NONE = "–"
OUTCOME, DIRECTION, NUMBER = "outcome", "direction", "number"
_OPEN = {"not stated", "not evaluated"}
# Which of our checkpoints a row of published far masses is about: size, and arms where not all of that edit.
_EDITED: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "cap 25M": ("S", ()),
    "cap 100M": ("C", ()),
    "repair 25M": ("S", ()),
    "LC 100M": ("C", ("log-gt1", "log-lt1")),
    "log 100M": ("C", ("log",)),
}


@dataclass(frozen=True)
class Comparison:
    """One line: what the source says, what came out here, and whether they agree ("yes", "no", or "–" if unknown).

    part: the source's table. name: its name for the row, or the test's id. compared: "outcome" | "direction" |
    "number". assumptions: those that a verdict rests on.
    """

    part: str
    name: str
    arm: str
    quantity: str
    compared: str
    source: str
    here: str
    agrees: str
    assumptions: str = ""


def compare(
    records: Sequence[Record], summary: pd.DataFrame, published: Mapping[str, Any], scale: Scale, runs: str | Path
) -> list[Comparison]:
    """Return every line of the comparison at `scale`: numbers and step times only at the published scale."""
    numbers = scale.name == published["comparable_scale"]
    measured = _Measured(summary, scale)
    rows = [*_outcomes(records, published)]
    rows += [*_screening_directions(published, measured), *_margin_directions(published, measured)]
    rows += _edit_directions(published, measured)
    if numbers:
        rows += [*_screening_numbers(published, measured), *_edit_numbers(published, measured)]
        rows += _step_times(published, Path(runs), scale)
    return rows


def _outcomes(records: Sequence[Record], published: Mapping[str, Any]) -> Iterator[Comparison]:
    stated = {row["test"]: row["outcome"] for row in published["outcomes"]}
    for record in records:
        there, here = stated.get(record["test_id"], record["source"]["outcome"]), record["verdict"]
        agrees = NONE if {there, here} & _OPEN else _yes(there == here)
        rests = ", ".join(record["assumptions"])
        here = f"{here} ({record['reason']})" if record["reason"] else here
        yield Comparison("outcomes", record["test_id"], "", record["claim"], OUTCOME, there, here, agrees, rests)


class _Measured:
    """Means over seeds of the screening size, and values of edited checkpoints, by arm and multiple of L."""

    def __init__(self, summary: pd.DataFrame, scale: Scale) -> None:
        self._all = summary.assign(multiple=summary["length"] // summary["train_length"])
        own = (self._all["size"] == "S") & (self._all["train_length"] == scale.sizes["S"].train_length)
        self._screening = self._all[own & (self._all["variant"] == "plain")]

    def mean(self, arm: str, column: str, multiple: int) -> float | None:
        """Mean over seeds, None where nothing was measured or one seed's is not a number."""
        chosen = self._screening[(self._screening["arm"] == arm) & (self._screening["multiple"] == multiple)][column]
        return None if chosen.empty or chosen.isna().any() else float(chosen.mean())

    def growth(self, arm: str) -> float | None:
        """Far mass at 8L minus far mass at L."""
        low, high = (self.mean(arm, "far_mass_eighth", multiple) for multiple in (1, 8))
        return None if low is None or high is None else high - low

    def edited(self, name: str, edit: str) -> tuple[list[float], list[float]]:
        """Far mass at 8L before and after `edit`, checkpoint by checkpoint. Raises `UserError` for an unknown row."""
        if name not in _EDITED:
            raise refuse("is a row that no checkpoints are known for", file=PUBLISHED, key="source_name", value=name)
        size, arms = _EDITED[name]
        at_end = self._all[(self._all["multiple"] == 8) & (self._all["size"] == size)].set_index("run")
        after = at_end[at_end["variant"] == edit]
        if arms:
            after = after[after["arm"].isin(arms)]
        before = at_end[at_end["variant"] == "plain"]["far_mass_eighth"]
        kept = [run for run in after.index if run in before.index]
        return [float(before[run]) for run in kept], [float(after["far_mass_eighth"][run]) for run in kept]


def _screening_directions(published: Mapping[str, Any], measured: _Measured) -> Iterator[Comparison]:
    base, *others = published["screening"]
    for row in [base, *others]:
        for quantity, key, column in (("loss", "loss", "loss"), ("far mass", "far_mass", "far_mass_eighth")):
            there = {1: row[f"{key}_at_512"], 8: row[f"{key}_at_4096"]}
            here = {multiple: measured.mean(row["arm"], column, multiple) for multiple in there}
            if row is not base:
                for multiple, name in ((1, "L"), (8, "8L")):
                    words = (f"below {base['source_name']}", f"above {base['source_name']}")
                    source = _word(there[multiple], base[f"{key}_at_{512 * multiple}"], *words)
                    ours = _word(here[multiple], measured.mean(base["arm"], column, multiple), *words)
                    yield _direction("screening", row, f"{quantity} at {name}", source, ours)
            source, ours = (_word(value[8], value[1], "falls", "rises") for value in (there, here))
            yield _direction("screening", row, f"{quantity} from L to 8L", source, ours)


def _margin_directions(published: Mapping[str, Any], measured: _Measured) -> Iterator[Comparison]:
    previous = None
    for row in published["margin"]:
        ours = _word(measured.mean(row["arm"], "loss", 8), measured.mean(row["arm"], "loss", 1), "falls", "rises")
        source = _word(row["loss_at_4096"], row["loss_at_512"], "falls", "rises")
        yield _direction("margin", row, "loss from L to 8L", source, ours)
        if previous is not None and row["far_mass_growth"] is not None:
            words = (f"below {previous['source_name']}", f"above {previous['source_name']}")
            source = _word(row["far_mass_growth"], previous["far_mass_growth"], *words)
            ours = _word(measured.growth(row["arm"]), measured.growth(previous["arm"]), *words)
            yield _direction("margin", row, "growth of far mass from L to 8L", source, ours)
        previous = row


def _edit_directions(published: Mapping[str, Any], measured: _Measured) -> Iterator[Comparison]:
    for row in published["far_mass_under_edits"]:
        source = _common(list(zip(row["after"], row["before"], strict=True)))
        before, after = measured.edited(row["source_name"], row["edit"])
        ours = _common(list(zip(after, before, strict=True)))
        yield _direction("far mass under edits", row, f"far mass at 8L under {row['edit']}", source, ours)


def _screening_numbers(published: Mapping[str, Any], measured: _Measured) -> Iterator[Comparison]:
    for part in ("screening", "margin"):
        for row in published[part]:
            for key, column in (("loss", "loss"), ("far_mass", "far_mass_eighth")):
                for multiple, length in ((1, 512), (8, 4096)):
                    there = row.get(f"{key}_at_{length}")
                    if there is not None:
                        quantity = f"{key.replace('_', ' ')} at {length}"
                        yield _number(part, row, quantity, there, measured.mean(row["arm"], column, multiple))
            if row.get("far_mass_growth") is not None:
                growth = measured.growth(row["arm"])
                yield _number(part, row, "growth of far mass, 512 to 4096", row["far_mass_growth"], growth)


def _edit_numbers(published: Mapping[str, Any], measured: _Measured) -> Iterator[Comparison]:
    for row in published["far_mass_under_edits"]:
        ours = measured.edited(row["source_name"], row["edit"])
        for when, values in zip(("before", "after"), ours, strict=True):
            here = _range([min(values), max(values)]) if values else NONE
            quantity = f"far mass at 8L {when} {row['edit']}, range over checkpoints"
            there = _range(row[when])
            yield Comparison("far mass under edits", row["source_name"], "", quantity, NUMBER, there, here, NONE)


def _step_times(published: Mapping[str, Any], runs: Path, scale: Scale) -> Iterator[Comparison]:
    for part, key in (("step_time_0001", "seconds_per_step"), ("step_time_0002", "milliseconds_per_step")):
        base, *others = published[part]
        ours = _seconds(runs, base["arm"], scale)
        for row in others:
            mine = None if row["arm"] is None else _seconds(runs, row["arm"], scale)
            ratio = None if mine is None or ours is None else mine / ours
            quantity = f"time of a step, over that of {base['source_name']}"
            yield _number(part.replace("_", " "), row, quantity, row[key] / base[key], ratio)


def _seconds(runs: Path, arm: str, scale: Scale) -> float | None:
    """Mean seconds a step over the screening seeds of `arm`, None without a sidecar. Raises `UserError`."""
    length = scale.sizes["S"].train_length
    files = sorted(runs.glob(f"S-{arm}-L{length}-s*/timing.json"))
    times = [times["seconds_per_step"] for file in files if "seconds_per_step" in (times := read_timing(file))]
    return sum(times) / len(times) if times else None


def _direction(part: str, row: Mapping[str, Any], quantity: str, source: str, here: str) -> Comparison:
    agrees = NONE if NONE in (source, here) else _yes(source == here)
    return Comparison(part, row["source_name"], row.get("arm") or "", quantity, DIRECTION, source, here, agrees)


def _number(part: str, row: Mapping[str, Any], quantity: str, source: float, here: float | None) -> Comparison:
    ours = NONE if here is None else f"{here:.3f}"
    return Comparison(part, row["source_name"], row["arm"] or "", quantity, NUMBER, f"{source:.3f}", ours, NONE)


def _word(value: float | None, base: float | None, below: str, above: str) -> str:
    if value is None or base is None:
        return NONE
    return "equal" if value == base else below if value < base else above


def _common(pairs: Sequence[tuple[float, float]]) -> str:
    """Which way all pairs (after, before) went."""
    words = {_word(after, before, "falls", "rises") for after, before in pairs}
    return words.pop() if len(words) == 1 else "mixed" if words else NONE


def _range(values: Sequence[float]) -> str:
    return f"{values[0]:.3f} to {values[1]:.3f}"


def _yes(answer: bool) -> str:
    return "yes" if answer else "no"
