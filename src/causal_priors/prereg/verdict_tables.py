"""Verdict records for readers: a flat table, a page of markdown, and the lines that the pipeline prints at its end."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from causal_priors.artifacts import own_digest, read_json, write_json
from causal_priors.errors import refuse
from causal_priors.remedies import rebuild, rebuild_command
from causal_priors.tables import SCHEMAS

WIDTH = 100
NOTHING = "Scale {scale} is for tests of the software: outcomes at this scale mean nothing."
DIRECTION = "Scale {scale} is exploratory: it shows direction. Only the scale `paper` is confirmatory."
Record = Mapping[str, Any]


def flat_frame(records: Sequence[Record]) -> pd.DataFrame:
    """Return one row per record in the columns of the kind "verdicts"; nested values become JSON text."""
    rows = [
        {**record, "expected_outcome": record["expected"]["outcome"], "source_outcome": record["source"]["outcome"]}
        for record in records
    ]
    names = SCHEMAS["verdicts"].names
    return pd.DataFrame([{name: _flat(row[name]) for name in names} for row in rows], columns=names)


def _flat(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False, sort_keys=True) if isinstance(value, dict | list) else value


def read_verdicts(path: str | Path, scale: str | None = None) -> list[dict[str, Any]]:
    """Return the records of a verdicts.json.

    scale: the scale that they should be of. Raises `UserError` where the file is missing, not JSON, or holds a record
    that differs from its digest or is of another scale.
    """
    remedy = f"run the pipeline first: {rebuild_command(path)}"
    records = read_json(path, remedy=remedy)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise refuse("holds no list of verdicts", file=path, remedy=remedy)
    for record in records:
        if record.pop("digest", None) != own_digest(record):
            raise refuse("is damaged (a verdict differs from its digest)", file=path, remedy=rebuild(path))
        if scale is not None and (found := record.get("scale", scale)) != scale:
            raise refuse(f"holds verdicts of scale {found}, not of {scale}", file=path, remedy=f"write --scale {found}")
    return records


def write_verdicts(path: str | Path, records: Sequence[Record]) -> None:
    """Write records as a verdicts.json, each with its digest as the entry "digest"."""
    write_json(path, [{**record, "digest": own_digest(record)} for record in records])


def plain_text(records: Sequence[Record]) -> str:
    """Return the verdict table for a terminal, at most 100 columns wide."""
    if not records:
        return "No test is registered.\n"
    first = records[0]
    head = f"{'test':<8}{'verdict':<15}{'margin':>11}{'n':>4}{'chance':>9}  {'expected':<15}{'source':<15}"
    lines = [
        f"Registered tests at scale {first['scale']} (scale digest {first['scale_digest'][:12]})",
        "",
        head.rstrip(),
    ]
    for record in records:
        numbers = f"{_number(record['margin']):>11}{record['n']:>4}{_chance(record['chance_level']):>9}"
        outcomes = f"{record['expected']['outcome']:<15}{record['source']['outcome']}"
        lines.append(f"{record['test_id']:<8}{record['verdict']:<15}{numbers}  {outcomes}")
        lines += _wrapped(record["rule"])
        lines += [line for text in _remarks(record) for line in _wrapped(text)]
    return "\n".join([*lines, "", *_closing(records)]) + "\n"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 10, break_on_hyphens=False)


def _remarks(record: Record) -> list[str]:
    remarks = [f"reason: {record['reason']}"] if record["reason"] else []
    if record["selection"]:
        remarks.append(f"scored arm: {record['selection']['arm']}")
    remarks += [f"beside, not scored: against {row['comparator']} {_outcome(row)}" for row in record["beside"]]
    if record["exploratory"]:
        remarks.append(f"exploratory, not scored: {_exploratory(record['exploratory'])}")
    remarks += [f"note: {text}" for text in record["notes"]]
    return remarks + [f"amended {item['date']}: {item['reason']}" for item in record["amendments"]]


def _outcome(row: Record) -> str:
    return f"{row['outcome']} ({row['reason']})" if row["reason"] else str(row["outcome"])


def _exploratory(rows: Sequence[Record]) -> str:
    done = [row for row in rows if "difference" in row]
    text = f"{sum(row['as_predicted'] for row in done)} of {len(rows)} checkpoints moved as predicted"
    left_out = len(rows) - len(done)
    return f"{text}, {left_out} not evaluated" if left_out else text


def _closing(records: Sequence[Record]) -> list[str]:
    first = records[0]
    scored = sum(record["verdict"] != "not evaluated" for record in records)
    lines = [f"{scored} of {len(records)} registered tests evaluated. preregistration/README.md says how to read this."]
    if first["scale_status"] == "test":
        lines.append(NOTHING.format(scale=first["scale"]))
    elif first["scale_status"] == "exploratory":
        lines.append(DIRECTION.format(scale=first["scale"]))
    return lines


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:+.4f}" if value == 0 or abs(value) >= 0.0001 else f"{value:+.1e}"


def _chance(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value >= 0.001 else f"{value:.0e}"


def markdown(records: Sequence[Record]) -> str:
    """Return the verdicts as a page: one table of all tests, then each test with all its numbers."""
    lines = ["# Verdicts", ""]
    if records:
        lines += [f"Scale `{records[0]['scale']}`, digest `{records[0]['scale_digest']}`.", *_closing(records), ""]
        lines += [
            "| test | claim | verdict | margin | n | chance | expected here | in the source |",
            "|---|---|---|---|---|---|---|---|",
        ]
    for record in records:
        verdict = record["verdict"] + (f" ({record['reason']})" if record["reason"] else "")
        cells = [record["test_id"], record["claim"], verdict, _number(record["margin"]), str(record["n"])]
        cells += [_chance(record["chance_level"]), record["expected"]["outcome"], record["source"]["outcome"]]
        lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
    for record in records:
        lines += _section(record)
    return "\n".join(lines) + "\n"


def _section(record: Record) -> list[str]:
    thresholds = ", ".join(f"{value:g} ({name})" for name, value in record["thresholds"].items())
    lines = ["", f"## {record['test_id']}: {record['verdict']}", "", record["claim"], ""]
    lines += [f"* Rule: {record['rule']}"]
    lines += [f"* {text[0].upper()}{text[1:]}" for text in _remarks(record)]
    lines += [
        f"* Threshold: {thresholds}, in {record['unit']}. Margin: {_number(record['margin'])}. n = {record['n']}.",
        f"* Chance level: {_chance(record['chance_level'])} ({record['chance_note']}).",
        f"* Expected at this scale: {record['expected']['outcome']}. {record['expected']['note']}",
        f"* In the source: {record['source']['outcome']}. {record['source']['note']}",
        f"* Rests on {', '.join(record['assumptions'])} (preregistration/assumptions.yaml).",
        f"* Seal `{record['seal_digest'][:16]}`, {len(record['inputs'])} tables read.",
    ]
    lines += _rows(record["observed"])
    for row in record["beside"]:
        lines += ["", f"Beside, not scored: against {row['comparator']}, {_outcome(row)}.", *_rows(row["observed"])]
    if done := [row for row in record["exploratory"] if "difference" in row]:
        lines += ["", "Exploratory, not scored:", *_rows(done)]
    return lines


def _rows(rows: Sequence[Record]) -> list[str]:
    if not rows:
        return []
    names = [name for name in rows[0] if name not in {"predicted", "run"}]
    table = ["", "| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return table + ["| " + " | ".join(_cell(row[name]) for name in names) + " |" for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value)
    return f"{value:.6f}" if value == 0 or abs(value) >= 0.001 else f"{value:.3e}"
