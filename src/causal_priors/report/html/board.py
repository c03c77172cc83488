"""The verdict board: one card a registered test, from the records that scoring wrote."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from causal_priors.prereg.ledger import Assumption
from causal_priors.prereg.terms import Protocol
from causal_priors.report.html.dots import Record, Strip, plot_of, strips

# "Not triggered" is an outcome of the switching rule, no failure.
_SIGNS = {"holds": "✓", "triggered": "✓", "fails": "✗", "not triggered": "○", "not evaluated": "–"}
_KINDS = {"✓": "yes", "✗": "no", "○": "open", "–": "open"}


@dataclass(frozen=True)
class Table:
    """Observed values as text, cell by cell."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Card:
    """One test as the page shows it."""

    record: Record
    sign: str
    kind: str
    thresholds: str
    margin: str
    chance: str
    strips: Sequence[Strip]
    axis: str
    axis_words: str
    agreement: str
    assumptions: Sequence[tuple[str, str]]
    remarks: Sequence[tuple[str, str]]
    tables: Sequence[Table]


@dataclass(frozen=True)
class Experiment:
    """The cards of one sealed protocol."""

    id: str
    title: str
    question: str
    cards: Sequence[Card]


def experiments(
    records: Sequence[Record], protocols: Sequence[Protocol], ledger: Mapping[str, Assumption]
) -> list[Experiment]:
    """Return the board in the protocols' order."""
    return [
        Experiment(
            protocol.id,
            protocol.title,
            protocol.question,
            [card(record, ledger) for record in records if record["experiment"] == protocol.id],
        )
        for protocol in protocols
    ]


def tally(records: Sequence[Record]) -> list[tuple[str, str, int]]:
    """(kind, verdict, how many), in the order of first appearance of the best known verdicts."""
    counts = [(verdict, sum(record["verdict"] == verdict for record in records)) for verdict in _SIGNS]
    return [(_KINDS[_SIGNS[verdict]], verdict, count) for verdict, count in counts if count]


def card(record: Record, ledger: Mapping[str, Assumption]) -> Card:
    """Return one record as the page shows it."""
    sign = _SIGNS[record["verdict"]]
    plot = plot_of(record)
    drawn, axis = strips(plot) if plot else ([], "")
    words = plot.axis if plot else ""
    used = {row["dtype"] for row in record["observed"] if "dtype" in row}
    kept = {name: value for name, value in record["thresholds"].items() if not used or name in used}
    thresholds = ", ".join(
        f"{value:g}" if name == "difference" or used else f"{value:g} ({name})" for name, value in kept.items()
    )
    return Card(
        record=record,
        sign=sign,
        kind=_KINDS[sign],
        thresholds=f"{thresholds} {record['unit']}",
        margin=number(record["margin"]),
        chance="none" if record["chance_level"] is None else f"{record['chance_level']:.2g}",
        strips=drawn,
        axis=axis,
        axis_words=words,
        agreement=_agreement(record),
        assumptions=[(item, ledger[item].text) for item in record["assumptions"] if item in ledger],
        remarks=_remarks(record),
        tables=_tables(record),
    )


def number(value: float | None, digits: int = 4) -> str:
    """A signed number as the page writes it, with a true minus; a dash where there is none."""
    if value is None:
        return "–"
    text = f"{value:+.{digits}f}" if value == 0 or abs(value) >= 10.0**-digits else f"{value:+.1e}"
    return text.replace("-", "−")


def _agreement(record: Record) -> str:
    there, here = record["source"]["outcome"], record["verdict"]
    if {there, here} & {"not stated", "not evaluated"}:
        return "cannot be compared"
    return "as here" if there == here else "unlike here"


def _remarks(record: Record) -> list[tuple[str, str]]:
    found = []
    if record["selection"]:
        means = ", ".join(f"{arm} {mean:.4f}" for arm, mean in record["selection"]["means"].items())
        found.append(
            (
                "Scored arm",
                f"{record['selection']['arm']}, the lowest on {record['selection']['blocks']} blocks ({means})",
            )
        )
    for other in record["beside"]:
        reason = f" ({other['reason']})" if other["reason"] else ""
        found.append(("Beside, not scored", f"against {other['comparator']}: {other['outcome']}{reason}"))
    if record["exploratory"]:
        done = [row for row in record["exploratory"] if "difference" in row]
        as_said = sum(row["as_predicted"] for row in done)
        found.append(
            ("Exploratory, not scored", f"{as_said} of {len(record['exploratory'])} checkpoints moved as predicted")
        )
    found += [("Note", text) for text in record["notes"]]
    found += [("Amended", f"{item['date']}: {item['reason']}") for item in record["amendments"]]
    return found


_LEFT_OUT = {"predicted", "threshold", "resolved", "length"}
# A run's name says these.
_IN_THE_NAME = {"arm", "size", "train_length", "seed"}


def _tables(record: Record) -> list[Table]:
    found = [_table("Observed", record["observed"])]
    found += [
        _table(f"Beside, not scored: against {other['comparator']}", other["observed"]) for other in record["beside"]
    ]
    found.append(_table("Exploratory, not scored", [row for row in record["exploratory"] if "difference" in row]))
    return [table for table in found if table.rows]


def _table(caption: str, rows: Sequence[Record]) -> Table:
    left_out = _LEFT_OUT | (_IN_THE_NAME if rows and "run" in rows[0] else set())
    names = [name for name in rows[0] if name not in left_out] if rows else []
    names = sorted(names, key=_column)
    return Table(
        caption, [name.replace("_", " ") for name in names], [[cell(row[name]) for name in names] for row in rows]
    )


_ORDER = ("run", "edit", "arm", "comparator", "size", "train_length", "length", "seed", "before", "after", "value")


def _column(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def cell(value: Any) -> str:
    """A value as a table writes it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        text = f"{value:.6f}" if value == 0 or abs(value) >= 0.001 else f"{value:.3e}"
        return text.replace("-", "−")
    return str(value)
