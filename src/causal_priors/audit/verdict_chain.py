"""The last links: seals, every verdict scored again from its tables, and the tables for readers made again."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd

from causal_priors.arms import ARMS
from causal_priors.audit.evidence import Evidence
from causal_priors.audit.findings import Link, Report
from causal_priors.audit.readers import check_readers, check_source, check_theory
from causal_priors.errors import UserError, shown
from causal_priors.prereg.exploratory import check_exploratory
from causal_priors.prereg.ledger import Amendment
from causal_priors.prereg.protocol import registered_runs
from causal_priors.prereg.scoring import COLUMNS, FINISHED, score
from causal_priors.prereg.seal import load_sealed
from causal_priors.prereg.terms import Protocol
from causal_priors.prereg.verdict_tables import read_verdicts
from causal_priors.scale import Scale

VERDICTS = "verdicts.json"
Record = Mapping[str, Any]
Sealed = tuple[tuple[Protocol, ...], dict[str, str], dict[str, tuple[Amendment, ...]]]


def check_seals(report: Report, preregistration: Path) -> Sealed | None:
    """Add the link of the seals; return what they seal, None where one is broken."""
    link = report.link("protocols -> seals")
    try:
        sealed = load_sealed(preregistration)
    except UserError as error:
        link.fail(error)
        return None
    protocols, digests, amendments = sealed
    link.checked += len(digests)
    with link.reading():
        link.checked += len(check_exploratory(preregistration))
    for protocol in protocols:
        for item in amendments[protocol.id]:
            report.amendments.append(f"{protocol.id}, {item.date}, on {', '.join(item.tests)}: {item.reason}")
    return sealed


def check_verdicts(
    report: Report, evidence: Evidence, scale: Scale, sealed: Sealed | None, preregistration: Path
) -> None:
    """Add the links from tables to verdicts, and from verdicts to tables for readers."""
    link = report.link("tables -> verdicts")
    path = evidence.file(VERDICTS)
    records: list[dict[str, Any]] = []
    if there := path.is_file():
        try:
            records = read_verdicts(path)
        except UserError as error:
            link.fail(error)
            return
    else:
        link.absent(path, "is not there", evidence.rebuild(VERDICTS))
    parts = sorted(evidence.folder.glob(f"experiments/*/{VERDICTS}"))
    if not there and not parts:
        return
    readers = report.link("verdicts -> tables for readers")
    if sealed is None:
        link.absent(path, "cannot be scored again: a seal is broken")
        readers.absent(path, "cannot be made again: a seal is broken")
        return
    if not evidence.tables:
        link.absent(path, "cannot be scored again: there is no evaluation table", "audit the folder of the runs")
        readers.absent(path, "cannot be made again: there is no evaluation table")
        return
    scored = _scored_again(evidence, scale, sealed, records, link)
    again = {record["test_id"]: json.loads(json.dumps(record)) for record in scored}
    if there:
        _compare(link, evidence, VERDICTS, records, again)
    tests = {protocol.id: [test.id for test in protocol.tests] for protocol in sealed[0]}
    for part in parts:
        with link.reading():
            name, wanted = str(part.relative_to(evidence.folder)), tests.get(part.parent.name, [])
            _compare(link, evidence, name, read_verdicts(part), {test: again[test] for test in wanted})
    check_readers(readers, evidence, scored, sealed[0], scale)
    check_theory(readers, evidence)
    # A forged verdict was named above; what is made from it says nothing more.
    if not link.broken:
        check_source(readers, evidence, preregistration, scale)


def _scored_again(
    evidence: Evidence, scale: Scale, sealed: Sealed, records: Sequence[Record], link: Link
) -> list[dict[str, Any]]:
    protocols, seals, amendments = sealed
    names = {run.name(scale) for run in registered_runs(protocols)}
    tables = [table for table in evidence.tables if table.run in names]
    told = {file: sha256 for record in records for file, sha256 in dict(record.get("inputs", {})).items()}
    inputs: dict[str, dict[str, str]] = {}
    for table in tables:
        if not table.sha256:
            link.absent(table.file, "its sha256 needs the pyarrow that wrote it", _pyarrow(table.card))
        digest = table.sha256 or told.get(f"{table.run}/{table.name}", "")
        inputs.setdefault(table.run, {})[table.name] = digest
    frame = pd.concat([table.frame[COLUMNS] for table in tables], ignore_index=True)
    statuses = {table.run: table.status for table in tables if table.status != FINISHED}
    again = score(
        protocols,
        frame,
        scale,
        ARMS,
        statuses=statuses,
        inputs=inputs,
        seals=seals,
        amendments=amendments,
    )
    return [asdict(verdict) for verdict in again]


def _pyarrow(card: Mapping[str, Any]) -> str:
    return f"python -m pip install pyarrow=={card.get('versions', {}).get('pyarrow')}"


def _compare(link: Link, evidence: Evidence, name: str, records: Sequence[Record], again: Mapping[str, Record]) -> None:
    """Compare recorded verdicts with those scored again, field by field."""
    file, remedy = evidence.file(name), evidence.rebuild(name)
    tests = [str(record.get("test_id")) for record in records]
    link.expect(tests == list(again), file, f"holds {', '.join(tests)}; registered are {', '.join(again)}", remedy)
    for record in records:
        wanted = again.get(str(record.get("test_id")))
        if wanted is None:
            link.expect(False, file, f"holds {record.get('test_id')}, which is not registered", remedy)
            continue
        for key in sorted({*record, *wanted}):
            place, said, found = f"{file}: {wanted['test_id']}: {key}", record.get(key), wanted.get(key)
            if said != found and isinstance(said, dict) and isinstance(found, dict):
                keys = [part for part in sorted({*said, *found}) if said.get(part) != found.get(part)]
                for part in keys:
                    problem = f"says {shown(said.get(part))}; the files give {shown(found.get(part))}"
                    link.expect(False, f"{place}: {part}", problem, remedy)
            else:
                problem = f"says {shown(said)}; scored again it is {shown(found)}"
                link.expect(said == found, place, problem, remedy)
