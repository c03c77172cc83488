"""Evaluation tables: which checkpoint they name, and what their rows say of themselves."""

import hashlib
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np

from causal_priors.artifacts import sha256_file
from causal_priors.audit.claims import expect_there
from causal_priors.audit.complete import check_complete
from causal_priors.audit.copies import check_copies
from causal_priors.audit.data_chain import SHARDS
from causal_priors.audit.divergence import FINISHED
from causal_priors.audit.evidence import EVALUATION, RUN_CARD, Evidence, Table
from causal_priors.audit.findings import Link, Report
from causal_priors.audit.run_chain import distinct, rebuild
from causal_priors.data.shards import CARD
from causal_priors.errors import UserError
from causal_priors.prereg.terms import Intervention
from causal_priors.runs import Run, parse_run
from causal_priors.scale import Scale

STAGES = {EVALUATION: "evaluate"}
_IDENTITY = ["run", "size", "arm", "train_length", "seed", "stage"]


def check_results(
    report: Report,
    evidence: Evidence,
    scale: Scale,
    runs: Sequence[Run],
    interventions: Sequence[Intervention],
    claimed: Collection[str],
) -> None:
    """Add the links from checkpoints to evaluation tables. claimed: see `claimed_files`."""
    found = {f"{table.run}/{table.name}" for table in evidence.tables}
    wanted = {f"{run.name(scale)}/{EVALUATION}" for run in runs}
    wanted |= {f"{item.run.name(scale)}/{item.edit}.parquet" for item in interventions}
    link = report.link("registered tables")
    if evidence.snapshot and (left_out := wanted - found):
        link.absent(evidence.folder, f"{len(left_out)} of {len(wanted)} tables are not part of the snapshot")
        wanted &= found
    expect_there(link, evidence, wanted, found, claimed)
    cards, rows, twice = (report.link(name) for name in ("checkpoint -> table", "rows of a table", "no result twice"))
    shards = evidence.file(f"{SHARDS}/{CARD}")
    digest = sha256_file(shards) if shards.is_file() else None
    values = {}
    for table in evidence.tables:
        again = rebuild(evidence, table.run, table.name)
        _card(cards, evidence, table, digest, again)
        _rows(rows, table, scale, again)
        if table.name == EVALUATION and table.status == FINISHED:
            numbers = table.frame["value"].to_numpy(np.float64)
            values[table.run] = hashlib.sha256(numbers.tobytes()).hexdigest()
    distinct(twice, values, scale, "have the same results: one run under two names", lambda run: rebuild(evidence, run))
    check_complete(report.link("whole tables"), evidence, scale)
    check_copies(report.link("copies of a number"), evidence)


def _card(link: Link, evidence: Evidence, table: Table, shards: str | None, again: str) -> None:
    """The card in a table's metadata against the card of its run."""
    inputs, parameters, run = table.card["inputs"], table.card["parameters"], evidence.runs.get(table.run)
    if run is None:
        link.expect(False, table.file, f"is of a run without a {RUN_CARD}", rebuild(evidence, table.run))
        return
    same = inputs.get(RUN_CARD) == run.sha256
    link.expect(same, table.file, f"was made from another {RUN_CARD} than {run.file}", again)
    if shards is not None:
        link.expect(inputs.get("shards") == shards, table.file, "was made with other shards", again)
    for key in ("run", "scale", "arm"):
        same = parameters.get(key) == run.content["parameters"].get(key)
        link.expect(same, f"{table.file}: {key}", f"is not what {RUN_CARD} says", again)
    edit = None if table.name == EVALUATION else Path(table.name).stem
    stage = STAGES.get(table.name, "intervene")
    same = (table.card.get("stage"), parameters.get("edit")) == (stage, edit)
    link.expect(same, table.file, f"is not a table of {edit or stage}", again)
    link.expect(table.status == run.content["status"], table.file, f"has another status than {RUN_CARD}", again)


def _rows(link: Link, table: Table, scale: Scale, again: str) -> None:
    """Whose rows a table says that it holds."""
    try:
        run = parse_run(table.run, scale)
    except UserError as error:
        return link.fail(error)
    expected = [table.run, run.size, run.arm, run.train_length(scale), run.seed, STAGES.get(table.name, "intervene")]
    for key, value in zip(_IDENTITY, expected, strict=True):
        other = table.frame.loc[(table.frame[key] != value).to_numpy(bool, na_value=True), key]
        wrong = "" if other.empty else other.iloc[0]
        link.expect(other.empty, table.file, f"holds rows of {key} {wrong}", again)
    return None
