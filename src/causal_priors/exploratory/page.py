"""The page of the exploratory analyses: a caption and a condensed table for each, and what is left out."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd

from causal_priors.exploratory import captions
from causal_priors.exploratory.drift import NEAR
from causal_priors.exploratory.result import Absent, Result
from causal_priors.runs import EVALUATION_FACTORS
from causal_priors.scale import Scale

STAMP = "*Exploratory: enters no verdict.*"
NONE = "–"
_GROUP = ["size", "arm", "train_length"]
_SHOWN = 6


def page(results: Mapping[str, Result], scale: Scale) -> str:
    """Return the page in markdown. results: by table name, as `stage.analyse` gives them."""
    meaning = {"test": " At this scale numbers mean nothing.", "exploratory": " This scale shows direction."}
    head = (
        f"Scale `{scale.name}`.{meaning.get(scale.status, '')} Nothing here is registered, and no verdict looks at it."
    )
    lines = ["# Exploratory analyses", "", head]
    for title, caption, tables, body in (
        ("Intervals of the registered comparisons", captions.INTERVALS, ("intervals",), _intervals),
        ("Thresholds at which verdicts would flip", captions.SENSITIVITY, ("sensitivity",), _sensitivity),
        ("Cap and repair by position", captions.EDITS, ("edits",), _edits),
        ("Exponents over training", captions.EXPONENTS, ("exponents-moved",), _exponents),
        ("Far mass beside what position alone predicts", captions.FAR_MASS, ("far-mass",), _far_mass),
        ("Negative controls", captions.CONTROLS, ("controls",), _controls),
    ):
        found = [results[name] for name in tables]
        lines += ["", f"## {title}", "", caption, "", STAMP, "", *body(*(item.rows for item in found))]
        lines += _left_out(item for result in found for item in result.absent)
    if len(controls := results["controls"].rows):
        lines += ["", _size_of_cap(results["edits"].rows, controls)]
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    body = [f"| {' | '.join(cells)} |" for cells in rows]
    if not body:
        return ["Nothing to show."]
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *body]


def _left_out(absent: Iterable[Absent]) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for item in absent:
        by_reason.setdefault(item.reason, []).append(item.item)
    if not by_reason:
        return []
    lines = ["", "Left out:", ""]
    for reason, items in by_reason.items():
        more = f" and {len(items) - _SHOWN} more" if len(items) > _SHOWN else ""
        lines.append(f"* {', '.join(items[:_SHOWN])}{more}: {reason}")
    return lines


def _number(value: float | None, digits: int = 4) -> str:
    if value is None or np.isnan(value):
        return NONE
    return f"{value:+.{digits}f}" if value == 0 or abs(value) >= 10.0**-digits else f"{value:+.0e}"


def _intervals(rows: pd.DataFrame) -> list[str]:
    head = ["test", "role", "comparisons", "beyond", "open", "short", "few blocks", "smallest", "largest", "neighbours"]
    cells = []
    for key, part in rows.groupby(["test", "role"], sort=False):
        counts = part["against_threshold"].value_counts()
        places = [str(counts.get(name, 0)) for name in ("beyond", "open", "short", "few blocks")]
        ordered = part.sort_values("difference", kind="stable")
        ends = [_interval(ordered.iloc[0]), _interval(ordered.iloc[-1])]
        cells.append([*map(str, key), str(len(part)), *places, *ends, _number(part["neighbours"].max(), 2)])
    return _table(head, cells)


def _interval(row: pd.Series) -> str:
    return f"{_number(row['difference'])} ({_number(row['low'])} to {_number(row['high'])})"


def _sensitivity(rows: pd.DataFrame) -> list[str]:
    head = ["test", "outcome", "threshold", "frozen", "flips", "at", "distance", "becomes"]
    return _table(
        head,
        (
            [
                *(row["test"], row["outcome"], row["threshold"], f"{row['frozen']:g}"),
                *("at no value" if row["side"] == "none" else row["side"], _plain(row["flips_at"])),
                *(_number(row["distance"]), row["becomes"] or NONE),
            ]
            for row in rows.to_dict("records")
        ),
    )


def _plain(value: float | None) -> str:
    return NONE if value is None or np.isnan(value) else f"{value:.4g}"


def _bins(part: pd.DataFrame, counted: bool) -> list[str]:
    """One cell per bin of positions beyond L, and one of far mass at L/8."""
    length = part["train_length"].iloc[0]
    losses = part[part["quantity"] == "loss"]
    cells = []
    for factor in EVALUATION_FACTORS[:-1]:
        chosen = losses[losses["first"] == factor * length + 1]
        signs = chosen["sign"].value_counts()
        suffix = f" ({signs.get('up', 0)}/{signs.get('down', 0)})" if counted else ""
        cells.append(_number(chosen["change"].mean(), 5) + suffix)
    far = part[(part["quantity"] == "far_mass") & (part["far_window"] * 8 == length)]
    return [*cells, _number(far["change"].mean())]


_BIN_HEADS = ["L+1 to 2L", "2L+1 to 4L", "4L+1 to 8L", "far mass"]


def _edits(rows: pd.DataFrame) -> list[str]:
    head = ["edit", "size", "arm", "status", "checkpoints", *_BIN_HEADS]
    groups = rows.groupby(["variant", "size", "arm", "status"], sort=True)
    return _table(head, ([*map(str, key), str(part["run"].nunique()), *_bins(part, True)] for key, part in groups))


def _exponents(rows: pd.DataFrame) -> list[str]:
    head = ["size", "arm", "L", "seeds", "heads", "exponent", "distance from one", f"within {NEAR:g}", "nearer"]
    head += ["farther", "crossed"]
    cells = []
    for key, part in rows.groupby(_GROUP):
        weight = part["heads"] / part["heads"].sum()
        pairs = [
            f"{(part[f'start_{name}'] * weight).sum():.3f} → {(part[f'end_{name}'] * weight).sum():.3f}"
            for name in ("mean", "distance")
        ]
        near = f"{part['near_at_start'].sum()} → {part['near_at_end'].sum()}"
        counts = [str(part[name].sum()) for name in ("nearer", "farther", "crossed")]
        cells.append([*map(str, key), str(len(part)), str(part["heads"].sum()), *pairs, near, *counts])
    return _table(head, cells)


def _far_mass(rows: pd.DataFrame) -> list[str]:
    head = ["size", "arm", "L", "seeds", "measured at L", "predicted", "measured at 8L", "predicted"]
    head += ["growth measured", "predicted"]
    cells = []
    for key, part in rows[rows["far_window"] * 8 == rows["train_length"]].groupby(_GROUP):
        values = []
        for factor in (1, EVALUATION_FACTORS[-1]):
            chosen = part[part["length"] == factor * part["train_length"]]
            values += [chosen["measured"].mean(), chosen["predicted"].mean()]
        growth = [values[2] - values[0], values[3] - values[1]]
        shown = [f"{value:.4f}" for value in values] + [_number(value) for value in growth]
        cells.append([*map(str, key), str(part["run"].nunique()), *shown])
    return _table(head, cells)


def _controls(rows: pd.DataFrame) -> list[str]:
    head = ["size", "arm", "control", "seeds", *_BIN_HEADS, "same bits"]
    cells = []
    for key, part in rows.groupby(["size", "arm", "variant"]):
        same = f"{part['equal_rows'].sum()} of {part['rows'].sum()}"
        cells.append([*map(str, key), str(part["run"].nunique()), *_bins(part, False), same])
    return _table(head, cells)


def _size_of_cap(edits: pd.DataFrame, controls: pd.DataFrame) -> str:
    """The controls' largest effect at the last bin beside cap's."""

    def span(rows: pd.DataFrame) -> str:
        last = rows[rows["last"] == EVALUATION_FACTORS[-1] * rows["train_length"]]["change"]
        return NONE if last.empty else f"{_number(last.min(), 5)} to {_number(last.max(), 5)}"

    cap = span(edits[(edits["variant"] == "cap") & (edits["status"] == "registered")])
    sham = {name: span(controls[controls["variant"] == name]) for name in ("sham", "sham-even")}
    return (
        f"At positions 4L+1 to 8L, cap moves the loss of the registered checkpoints by {cap} nats per target; sham by"
        f" {sham['sham']}, sham-even by {sham['sham-even']}."
    )
