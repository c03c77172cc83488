"""The study beside its source, as a table and as a page: `tables/source.csv` and `tables/source.md`.

Inputs are what the pipeline has written (verdicts, summary) and what the source is known to report; `comparison` holds
what is compared. Nothing here enters a verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pandas as pd

from causal_priors.artifacts import atomic_path, write_text
from causal_priors.errors import refuse
from causal_priors.prereg import verdict_tables
from causal_priors.prereg.ledger import load_assumptions, load_published
from causal_priors.prereg.verdict_tables import Record, read_verdicts
from causal_priors.report.comparison import DIRECTION, NUMBER, OUTCOME, Comparison, compare
from causal_priors.scale import Scale

_STATUS = {"test": verdict_tables.NOTHING, "exploratory": verdict_tables.DIRECTION}
_NUMBERS = """
Losses in nats per target and far mass as a share of attention, means over seeds of the screening size. Step times are
ratios within one table, ours from the timing sidecars, so that they say more of the method than of the machine."""
_DIRECTIONS = """
Only directions are compared at scale `{scale}`. The source's numbers belong to the scale `{paper}`: other sizes, other
text, another budget. Step times are compared there only, too; `timing.json` beside each run has those of this study."""


def source_stage(
    verdicts: str | Path,
    summary: str | Path,
    preregistration: str | Path,
    scale: Scale,
    runs: str | Path,
    out_csv: str | Path,
    out_md: str | Path,
) -> None:
    """Write the comparison as a flat table and as a page.

    verdicts: verdicts.json. summary: the summary table as csv. runs: folder of the runs, for their timing sidecars.
    Raises `UserError` where one of them is missing, damaged or of another scale.
    """
    records, published = read_verdicts(verdicts, scale.name), load_published(preregistration)
    rows = compare(records, read_summary(summary), published, scale, runs)
    with atomic_path(out_csv) as temporary:
        names = [field.name for field in fields(Comparison)]
        frame = pd.DataFrame([asdict(row) for row in rows], columns=names)
        frame.to_csv(temporary, index=False, lineterminator="\n")
    used = sorted({item for record in records for item in record["assumptions"]}, key=lambda item: int(item[1:]))
    known = load_assumptions(preregistration)
    ledger = {item: known[item].text for item in used}
    write_text(out_md, page(rows, records, published["comparable_scale"], scale, ledger))


def read_summary(path: str | Path) -> pd.DataFrame:
    """Return the rows of the summary table that belong to the registered study. Raises `UserError`."""
    try:
        frame = pd.read_csv(path)
        return frame[frame["status"] == "registered"]
    except (OSError, ValueError, KeyError) as error:
        raise refuse(
            f"cannot be read as a summary table ({error})", file=path, remedy="run the pipeline first"
        ) from error


def page(
    rows: Sequence[Comparison], records: Sequence[Record], paper: str, scale: Scale, ledger: Mapping[str, str]
) -> str:
    """Return the comparison in markdown. paper: the scale of the source's numbers. ledger: assumptions by id."""
    outcomes = [row for row in rows if row.compared == OUTCOME]
    lines = ["# Beside the source", ""]
    if said := _STATUS.get(scale.status):
        lines += [said.format(scale=scale.name), ""]
    lines += [_agreement(outcomes), "", "## Registered tests", ""]
    reasons = {record["test_id"]: record["source"]["note"] for record in records}
    lines += ["| test | claim | in the source | here | agree | rests on |", "|---|---|---|---|---|---|"]
    lines += [_line(row.name, row.quantity, row.source, row.here, row.agrees, row.assumptions) for row in outcomes]
    if notes := [f"* {row.name}: {reasons[row.name]}" for row in outcomes if row.source == "not stated"]:
        lines += ["", "Where the source states no outcome:", "", *notes]
    lines += ["", "What they rest on (preregistration/assumptions.yaml):", ""]
    lines += [f"* {item}: {text}" for item, text in ledger.items()]
    directions = [row for row in rows if row.compared == DIRECTION]
    lines += ["", "## Directions", ""]
    if scale.name != paper:
        lines += [*_DIRECTIONS.format(scale=scale.name, paper=paper).strip().splitlines(), ""]
    lines += [_agreement(directions), "", "| table | row | arm | compared | in the source | here | agree |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for row in directions:
        lines.append(_line(row.part, row.name, row.arm, row.quantity, row.source, row.here, row.agrees))
    if numbers := [row for row in rows if row.compared == NUMBER]:
        lines += [
            "",
            "## Numbers",
            *_NUMBERS.splitlines(),
            "",
            "| table | row | arm | quantity | in the source | here |",
        ]
        lines += ["|---|---|---|---|---|---|"]
        lines += [_line(row.part, row.name, row.arm, row.quantity, row.source, row.here) for row in numbers]
    return "\n".join(lines) + "\n"


def _agreement(rows: Sequence[Comparison]) -> str:
    answers = [row.agrees for row in rows]
    alike, known = answers.count("yes"), answers.count("yes") + answers.count("no")
    return f"{alike} of {known} agree; {len(rows) - known} of {len(rows)} cannot be compared."


def _line(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"
