"""The tables for readers, made again in memory: verdicts in other forms, the summary, the comparison with the source.

They enter no verdict, but are what people look at.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from causal_priors.audit.divergence import FINISHED
from causal_priors.audit.evidence import Evidence
from causal_priors.audit.findings import Link
from causal_priors.prereg.ledger import load_published
from causal_priors.prereg.protocol import registered_runs
from causal_priors.prereg.terms import Protocol
from causal_priors.prereg.verdict_tables import flat_frame, markdown
from causal_priors.report.data import read_theory
from causal_priors.report.source import source_stage
from causal_priors.report.tables import arm_table, summarise
from causal_priors.scale import Scale
from causal_priors.tables import read_table

Records = Sequence[dict[str, Any]]


def check_readers(
    link: Link, evidence: Evidence, records: Records, protocols: Sequence[Protocol], scale: Scale
) -> None:
    """Compare the files for readers with what `records`, the verdicts scored again, and the tables give."""
    if evidence.file("verdicts.json").is_file():
        _verdicts(link, evidence, records, "")
    for protocol in protocols:
        if evidence.file(f"experiments/{protocol.id}").is_dir():
            tests = {test.id for test in protocol.tests}
            part = [record for record in records if record["test_id"] in tests]
            _verdicts(link, evidence, part, f"experiments/{protocol.id}/")
    if evidence.snapshot:
        link.absent("tables/summary.csv", "needs the tables of all runs, of which a snapshot has those of verdicts")
    elif evidence.tables:
        _summary(link, evidence, {run.name(scale) for run in registered_runs(protocols)})


def check_source(link: Link, evidence: Evidence, preregistration: Path, scale: Scale) -> None:
    """Compare the table beside the source with what verdicts.json, summary.csv and the register give."""
    names = ("tables/source.csv", "tables/source.md")
    verdicts, summary = evidence.file("verdicts.json"), evidence.file("tables/summary.csv")
    if not verdicts.is_file() or not summary.is_file():
        return None
    with link.reading(), tempfile.TemporaryDirectory() as temporary:
        if evidence.snapshot and load_published(preregistration)["comparable_scale"] == scale.name:
            return link.absent(evidence.file(names[0]), "needs the timings of runs, which a snapshot leaves out")
        again = [Path(temporary) / Path(name).name for name in names]
        runs = evidence.folder / "runs"
        try:
            source_stage(verdicts, summary, preregistration, scale, runs, *again)
        except (KeyError, TypeError, ValueError) as error:
            problem = f"is not what the table beside the source is made from ({type(error).__name__}: {error})"
            link.expect(False, summary, problem, evidence.rebuild(summary.name))
            return None
        for name, path in zip(names, again, strict=True):
            _same_text(link, evidence, name, path.read_bytes().decode())
    return None


def check_theory(link: Link, evidence: Evidence) -> None:
    """Compare the two forms of the table of theory. What it holds takes a minute to compute, and no verdict reads it."""
    path, form = evidence.file("theory/theory.csv"), evidence.file("theory/theory.parquet")
    if path.is_file() and form.is_file():
        with link.reading():
            text = read_theory(form).to_csv(index=False, float_format="%.10g", lineterminator="\n")
            _same_text(link, evidence, "theory/theory.csv", text)


def _verdicts(link: Link, evidence: Evidence, records: Records, folder: str) -> None:
    flat = flat_frame(records)
    texts = {"verdicts.csv": flat.to_csv(index=False, lineterminator="\n"), "verdicts.md": markdown(records)}
    for name, text in texts.items():
        _same_text(link, evidence, f"{folder}{name}", text)
    path, remedy = evidence.file(f"{folder}verdicts.parquet"), evidence.rebuild(f"{folder}verdicts.parquet")
    if not path.is_file():
        return link.absent(path, "is not there", remedy)
    with link.reading():
        found = read_table(path, "verdicts", remedy)
        same = found.to_csv(index=False, lineterminator="\n") == texts["verdicts.csv"]
        link.expect(same, path, "differs from the verdicts scored again", remedy)
    return None


def _summary(link: Link, evidence: Evidence, registered: set[str]) -> None:
    """The summary of the runs that it has; a run that was asked for by name lies beside the study's and is in no table."""
    path, remedy = evidence.file("tables/summary.csv"), evidence.rebuild("tables/summary.csv")
    try:
        said = set(pd.read_csv(path, usecols=["run"])["run"])
    except FileNotFoundError:
        return link.absent(path, "is not there", remedy)
    except (OSError, ValueError):
        link.expect(False, path, "is no summary", remedy)
        return None
    # A run that diverged has no number for a row.
    finished = {table.run for table in evidence.tables if table.status == FINISHED}
    left_out = sorted((registered & finished) - said)
    link.expect(not left_out, path, f"lacks {', '.join(left_out[:3])}", remedy)
    frames = [table.frame for table in evidence.tables if table.run in said]
    if frames:
        runs = summarise(pd.concat(frames, ignore_index=True))
        text = runs.to_csv(index=False, float_format="%.6f", lineterminator="\n")
        _same_text(link, evidence, "tables/summary.csv", text)
        _same_text(link, evidence, "tables/summary.md", arm_table(runs))
    return None


def _same_text(link: Link, evidence: Evidence, name: str, text: str) -> None:
    path, remedy = evidence.file(name), evidence.rebuild(name)
    if not path.is_file():
        link.absent(path, "is not there", remedy)
        return
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        found = file.read(len(text) + 1)
    link.expect(found == text, path, "differs from what the files behind it give", remedy)
