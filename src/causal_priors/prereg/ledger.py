"""What stands beside the protocols: the assumption ledger, the source's published numbers, and amendments.

Amendments carry words only, never a value that scoring reads, so none can move a threshold. Each names the digest of
what came before it (the seal, then the previous amendment): rewriting or dropping an earlier one breaks the chain.
"""

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from causal_priors.artifacts import digest_of
from causal_priors.errors import refuse
from causal_priors.prereg.protocol import read_data
from causal_priors.prereg.terms import Protocol

ASSUMPTIONS, PUBLISHED, AMENDMENTS = "assumptions.yaml", "published.yaml", "amendments.yaml"


@dataclass(frozen=True)
class Assumption:
    """One entry of the ledger: what is assumed, why, and what would settle it."""

    id: str
    text: str
    why: str
    settled_by: str


@dataclass(frozen=True)
class Amendment:
    """A dated remark on registered tests, made after the seal."""

    date: str
    tests: tuple[str, ...]
    reason: str
    previous: str


def load_assumptions(folder: str | Path) -> dict[str, Assumption]:
    """Return the ledger of `folder` by id. Raises `UserError`."""
    file = Path(folder) / ASSUMPTIONS
    data = read_data(file, "assumptions")
    entries = [Assumption(**row) for row in data["assumptions"]]
    ids = [entry.id for entry in entries]
    if repeated := [item for item in ids if ids.count(item) > 1]:
        raise refuse(f"holds {repeated[0]} twice", file=file, key="assumptions", remedy="keep one")
    return {entry.id: entry for entry in entries}


def load_published(folder: str | Path) -> dict[str, Any]:
    """Return the source's numbers and outcomes as plain data. Raises `UserError`."""
    file = Path(folder) / PUBLISHED
    data = read_data(file, "published")
    return dict(data)


def check_references(protocols: Iterable[Protocol], folder: str | Path) -> None:
    """Refuse a test that rests on an unknown assumption or gives the source another outcome than published.yaml."""
    known, outcomes = load_assumptions(folder), {}
    for row in load_published(folder)["outcomes"]:
        outcomes[row["test"]] = row["outcome"]
    for protocol in protocols:
        for test in protocol.tests:
            for item in test.assumptions:
                if item not in known:
                    remedy = f"{ASSUMPTIONS} has {', '.join(known)}"
                    key = f"tests.{test.id}.assumptions"
                    raise refuse("is not in the ledger", file=protocol.file, key=key, value=item, remedy=remedy)
            if outcomes.get(test.id, test.source.outcome) != test.source.outcome:
                key, remedy = f"tests.{test.id}.source.outcome", f"{PUBLISHED} says {outcomes[test.id]!r}"
                raise refuse("disagrees", file=protocol.file, key=key, value=test.source.outcome, remedy=remedy)


def load_amendments(protocol: Protocol, seal_digest: str, sealed_on: str) -> tuple[Amendment, ...]:
    """Return the amendments of `protocol`, oldest first.

    Raises `UserError` for a test that the protocol lacks, a date before the one above it, or a broken chain.
    """
    file = protocol.folder / AMENDMENTS
    data = read_data(file, "amendments")
    tests = {test.id for test in protocol.tests}
    previous, latest = seal_digest, sealed_on
    amendments = []
    for number, row in enumerate(data["amendments"]):
        key = f"amendments.{number}"
        for test in row["tests"]:
            if test not in tests:
                raise refuse("is no test of this protocol", file=file, key=f"{key}.tests", value=test)
        check_date(row["date"], file, f"{key}.date")
        if row["date"] < latest:
            problem = f"is before {latest}, the date above it"
            raise refuse(problem, file=file, key=f"{key}.date", value=row["date"], remedy="append, never insert")
        if row["previous"] != previous:
            problem = "does not follow from what stands before it: the seal or an earlier amendment was rewritten"
            raise refuse(
                problem, file=file, key=f"{key}.previous", remedy="restore the file from the repository's history"
            )
        amendments.append(Amendment(row["date"], tuple(row["tests"]), row["reason"], row["previous"]))
        previous, latest = digest_of(row), row["date"]
    return tuple(amendments)


def check_date(date: str, file: str | Path, key: str) -> None:
    """Refuse a text that is no calendar date. Raises `UserError`."""
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise refuse("is not a date", file=file, key=key, value=date, remedy="write it as 2026-11-29") from None
